# Types for the names of index_format.py.
from libc.stdint cimport int64_t

cdef int64_t _INT_MAX


cdef class IndexHeader:
    cdef public int64_t begin_timestamp, end_timestamp, begin_offset, end_offset, used_slots, count

cpdef int64_t time_difference(int64_t store_timestamp, int64_t begin_timestamp)
