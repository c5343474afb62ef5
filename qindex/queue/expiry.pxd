# Types for the names of expiry.py.
from libc.stdint cimport int64_t


cdef class Expirer:
    cdef object __weakref__
    cdef public object _state, _flusher, _deliverer, _letters
    cdef public int64_t _earliest

    cpdef int note(self, int64_t expiry) except -1
