# Types for the names of properties.py.
cimport cython

from rocketstore cimport words

@cython.locals(at=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t, middle=Py_ssize_t, name=bytes, keys=bytes,
               unique_key=bytes, tags=bytes)
cpdef tuple find_indexed(bytes data)
@cython.locals(text=str, wrong=bint)
cpdef bytes encode_usual(object keys, object unique_key, object tags)
cpdef list split_keys(str unique_key, str keys)
