# Types for the names of commitlog.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore.format cimport words

cdef Py_ssize_t BLANK_SIZE, FIXED_SIZE
cdef int64_t MESSAGE_MAGIC


cdef class CommitLog:
    cdef public object files, view, _last
    cdef public tuple last, _ahead
    cdef public Py_ssize_t at, base, file_size, room, _ahead_most, _zeros_ahead

    cpdef object settle(self)
    cpdef Py_ssize_t make_room(self, Py_ssize_t size) except -1
    cpdef object write(self, object data)
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, begin=Py_ssize_t, start=Py_ssize_t, ahead=bytes, data=bytes)
    cpdef bytes read(self, Py_ssize_t offset, Py_ssize_t size)
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, size=int64_t, data=bytes)
    cpdef bytes read_record(self, Py_ssize_t offset)
    @cython.locals(data=bytes)
    cpdef int64_t store_time(self, Py_ssize_t offset, Py_ssize_t size) except? -1
