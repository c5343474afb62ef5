# Types for the names of store_clock.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore.format cimport words


cdef class StoreClock:
    cdef public bytes host, stamp
    cdef public bint wide
    cdef public int64_t first_tick, next_tick, now
    cdef public object _own, _ticks_per_ms

    cpdef object advance(self, object ticks)
    @cython.locals(ticks=int64_t)
    cpdef int64_t read(self) except -1
