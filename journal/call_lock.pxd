# Types for the names of call_lock.py.
from journal cimport words
from journal.owned_lock cimport OwnedLock


cdef class CallLock(OwnedLock):
    cdef public object before_waiting, refusal

    cpdef int check(self) except -1
    cpdef int check_taken(self) except -1
    cpdef int let_go(self) except -1
