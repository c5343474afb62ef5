# Types for the names of scan.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore.format cimport words

cdef int64_t MESSAGE_MAGIC, BLANK_MAGIC
cdef Py_ssize_t FIXED_SIZE

@cython.locals(positions=list, there=Py_ssize_t, last=Py_ssize_t, size=int64_t, magic=int64_t)
cdef tuple _starts(bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t limit)
@cython.locals(number=Py_ssize_t, length=Py_ssize_t, at=Py_ssize_t)
cdef Py_ssize_t _check_bodies(
    bytes buffer, list body_at, list lengths, list crcs, Py_ssize_t good
) except -1
@cython.locals(number=Py_ssize_t, end=Py_ssize_t)
cdef Py_ssize_t _first_nul(
    bytes buffer, list topics, list ends, list property_lengths, Py_ssize_t good
) except -1
