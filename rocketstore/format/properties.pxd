# Types for the names of properties.py.
cimport cython

from rocketstore.format cimport words

cdef bytes _KEYS, _UNIQ_KEY, _TAGS


cdef class Indexed:
    cdef public Py_ssize_t keys, keys_end, tags, tags_end, unique, unique_end

    @cython.locals(stop=Py_ssize_t, middle=Py_ssize_t)
    cpdef object find(self, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end)

@cython.locals(data=bytes)
cpdef bytes encode_usual(object keys, object unique_key, object tags)
