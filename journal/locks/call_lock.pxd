# Types for the names of call_lock.py.
from libc.stdint cimport uint64_t

from journal.memory cimport words
from journal.locks.owned_lock cimport OwnedLock


cdef class CallLock(OwnedLock):
    cdef public object before_waiting, refusal, whose
    cdef uint64_t _stamp

    cpdef bint is_inherited(self)
    cpdef bint is_over(self)
    cpdef int check(self) except -1
    cpdef int check_taken(self) except -1
    cpdef int let_go(self) except -1
