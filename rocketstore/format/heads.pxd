# Types for the names of heads.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore.format cimport words

cdef Py_ssize_t _LENGTH_AT, _SHORTEST
cdef int64_t MESSAGE_MAGIC, OTHER_HOSTS, V6_BORN


cdef class Head:
    cdef public int64_t queue_offset, size, store_timestamp, sys_flag
    cdef public Py_ssize_t properties_at

    @cython.locals(length_at=Py_ssize_t, stored_at=Py_ssize_t, topic_at=Py_ssize_t)
    cpdef object read(self, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t base)
