# Types for the names of protocol.py.
cimport cython

from qindex.server cimport frames


cdef class Framer:
    cdef object _pack

    @cython.locals(packed=bytes, simple=bytes, size=Py_ssize_t)
    cpdef bytes of(self, tuple values)
