# Types for the names of columns.py.
cimport cython
from cpython.array cimport array
from libc.stdint cimport int64_t

from rocketstore cimport words
from rocketstore.properties cimport encode_usual

@cython.locals(number=Py_ssize_t, at=Py_ssize_t, start=bytes, tail=bytes, lead=bytes, leads=dict, body=bytes)
cdef object _encode_each(
    object columns, bytearray out, const int64_t[:] crcs, Py_ssize_t first, Py_ssize_t last, Py_ssize_t base,
    bytes topic_field, object queue_id, Py_ssize_t ordinals, bytes stamp
)
@cython.locals(sums=array, body=bytes)
cdef array _body_sums(object bodies)
@cython.locals(number=Py_ssize_t)
cdef list _encode_usual_each(Py_ssize_t count, dict common, dict several)
