# Types for the names of flow.py.


cdef class Flow:
    cdef public Py_ssize_t owed, under_way
    cdef public bint is_held

    cpdef bint goes_on(self) except -1
    cpdef bint reads(self) except -1
