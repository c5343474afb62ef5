# Types for the names of limits.py.
cimport cython


cdef class Limits:
    cdef public tuple names, kinds
    cdef public Py_ssize_t least, most


@cython.locals(limits=Limits, kind=dict)
cpdef object check(list request)
