# Types for the names of run_clock.py.
from libc.stdint cimport int64_t

from journal.memory cimport words

cdef int64_t _BEGAN
cdef int _CLOCK

cpdef int64_t time_ns() except? -1
