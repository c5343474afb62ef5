# Types for the names of segment.py.


cdef class Segment:
    cdef public Py_ssize_t base, file_size, number, stored_unacked
    cdef public bytearray states, filed
    cdef public object held, offsets, lengths, packed, verified
