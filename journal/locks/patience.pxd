# Types for the names of patience.py.
cimport cython

from journal.memory cimport words
from journal.locks.call_lock cimport CallLock


cdef class PatientLock(CallLock):
    cdef public Py_ssize_t waits
    cdef object _given_up, _line
    cdef unsigned long _user
    cdef Py_ssize_t _alone, _seen
    cdef bint _shared, _wanted

    cpdef bint take(self) except -1
    @cython.locals(user="unsigned long", waits=Py_ssize_t)
    cpdef object choose(self)
