# Types for the names of consumequeue.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore.format cimport words

cdef Py_ssize_t UNIT_SIZE


cdef class ConsumeQueue:
    cdef public object _files, topic, queue_id, directory, max_physical
    cdef public Py_ssize_t file_size, min_logic, wrote
    cdef public list starts
    cdef public tuple _path

    @cython.locals(position=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t, data=bytes)
    cpdef bytes read(self, object unit, object count)
    cpdef object put_run(self, Py_ssize_t first, Py_ssize_t offset, Py_ssize_t end, bytes data)
    @cython.locals(done=Py_ssize_t, position=Py_ssize_t, start=Py_ssize_t)
    cpdef object _append(self, bytes data)


cdef class UnitRun:
    cdef public ConsumeQueue _queue
    cdef public bytearray _units
    cdef public Py_ssize_t _end, _first, _next, _offset

    cpdef object add(self, Py_ssize_t ordinal, Py_ssize_t offset, Py_ssize_t size, int64_t code)
    cpdef object put(self)
