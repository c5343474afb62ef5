# Types for the names of owned_lock.py.
cimport cython

from journal.memory cimport words


cdef double _WHILE
cdef unsigned long _KEPT


cdef class _Sleeper:
    cdef object gate
    cdef bint is_awake, is_late
    cdef unsigned long thread


cdef class OwnedLock:
    cdef unsigned long _kept_for, _owner
    cdef Py_ssize_t _depth
    cdef list _sleepers

    cpdef bint is_mine(self)
    @cython.locals(me="unsigned long")
    cpdef bint acquire(self, bint blocking=*, double timeout=*) except -1
    @cython.locals(other=_Sleeper, sleeper=_Sleeper, began=double, waited=double, left=double)
    cpdef bint _sleep(self, unsigned long me, double timeout) except -1
    cdef bint _may_have_it(self, unsigned long me)
    @cython.locals(first=_Sleeper)
    cdef int _free(self) except -1
    cpdef int release(self) except -1
