# Types for the names of get_result.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore.format cimport words

cdef Py_ssize_t BODY_AT, FIXED_SIZE, UNIT_SIZE
cdef int64_t MESSAGE_MAGIC, OTHER_HOSTS


cdef class GetResult:
    cdef public object status, next_offset, min_offset, max_offset
    cdef public bytes _data, _units
    cdef public Py_ssize_t _count
    cdef public list _messages

    @cython.locals(data=bytes, units=bytes, found=list, at=Py_ssize_t, end=Py_ssize_t, number=Py_ssize_t, unit=Py_ssize_t,
                   raw=bytes)
    cdef list _read_messages(self)
    @cython.locals(data=bytes, units=bytes, found=list, at=Py_ssize_t, end=Py_ssize_t, number=Py_ssize_t, unit=Py_ssize_t,
                   size=int64_t, length=int64_t, body=bytes)
    cdef list _read_bodies(self)
    cdef object _hold(self, bytes data, bytes units, Py_ssize_t count)
