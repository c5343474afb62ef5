# Types for the names of publish_records.py.
cimport cython
from libc.stdint cimport uint64_t

from journal cimport words
from qindex.format.message_record cimport plain_body_head

cdef tuple PLAIN_HEADS
cdef bytes _RECORD_START
cdef Py_ssize_t _RECORD_HEAD_SIZE

@cython.locals(size=Py_ssize_t, body_head=bytes, record_size=Py_ssize_t, first=bytes)
cpdef bytes framed_record(
    uint64_t seq_id, uint64_t id_high, object body, uint64_t stamp, bytes middle, object expiry=*
)
cpdef bytes plain_record(uint64_t seq_id, uint64_t id_high, bytes body, uint64_t stamp)
