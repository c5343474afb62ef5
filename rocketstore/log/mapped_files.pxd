# Types for the names of mapped_files.py.
from rocketstore.format cimport words


cdef class MappedFile:
    cdef public object _fs, _map, _watch, on_open, path
    cdef public Py_ssize_t fd, held, reserved, size, start, wrote
    cdef public bint _writable, dirty

    cpdef object open(self)
    cpdef object map(self)
    cpdef bytes read(self, Py_ssize_t position, Py_ssize_t length)
    cpdef Py_ssize_t reserve(self, Py_ssize_t end) except -1
