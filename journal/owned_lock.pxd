# Types for the names of owned_lock.py.
cimport cython

from journal cimport words


cdef class OwnedLock:
    cdef unsigned long _owner
    cdef Py_ssize_t _asleep, _depth
    cdef bint _is_open
    cdef object _gate

    cpdef bint is_mine(self)
    @cython.locals(me="unsigned long")
    cpdef bint acquire(self, bint blocking=*, double timeout=*) except -1
    cpdef bint _sleep(self, unsigned long me, double timeout) except -1
    cpdef int release(self) except -1
