# Types for the names of heads.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore cimport words

cdef Py_ssize_t _LONGEST
cdef int64_t MESSAGE_MAGIC, V6_BORN


@cython.freelist(16)
cdef class Head:
    cdef public int64_t queue_offset, size, store_timestamp, sys_flag
    cdef public bytes properties

@cython.locals(head=bytes, tail=bytes, sys_flag=int64_t, length_at=Py_ssize_t, size=int64_t, topic_at=Py_ssize_t,
               properties_at=Py_ssize_t, stored=int64_t)
cpdef Head read_head(object view, Py_ssize_t at, Py_ssize_t end, Py_ssize_t base)
