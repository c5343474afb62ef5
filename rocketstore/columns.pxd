# Types for the names of columns.py.
cimport cython

from rocketstore.format cimport words
from rocketstore.format.properties cimport encode_usual

@cython.locals(number=Py_ssize_t)
cdef list _encode_usual_each(Py_ssize_t count, dict common, dict several)
