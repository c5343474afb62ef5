# Types for the names of route.py.


cdef class Route:
    cdef public object topic, queue_id
    cdef public tuple key
    cdef public Py_ssize_t ordinal
    cdef public bytes field, start
