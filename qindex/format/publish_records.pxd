# Types for the names of publish_records.py.
cimport cython
from libc.stdint cimport uint64_t

from journal.memory cimport words
from qindex.format.message_record cimport plain_body_head

cdef tuple PLAIN_TAILS
cdef bytes _RECORD_START
cdef Py_ssize_t CHECK_START

@cython.locals(tail=bytes)
cpdef bytes framed_record(
    uint64_t seq_id, uint64_t id_high, object body, uint64_t stamp, bytes middle,
    uint64_t expiry=*
)
@cython.locals(size=Py_ssize_t, tail=bytes)
cpdef bytes plain_record(uint64_t seq_id, uint64_t id_high, bytes body, uint64_t stamp)
@cython.locals(size=Py_ssize_t, tail=bytes)
cpdef bytes alike_record(
    uint64_t seq_id, uint64_t id_high, bytes body, uint64_t stamp, bytes middle, tuple tails
)
@cython.locals(size=Py_ssize_t, width=Py_ssize_t, head=bytes)
cpdef tuple plain_batch(
    uint64_t first_seq, uint64_t id_high, object bodies, uint64_t stamp, bytes middle=*
)
@cython.locals(position=Py_ssize_t, seq_id=uint64_t, record=bytes)
cpdef tuple framed_batch(
    uint64_t first_seq, uint64_t id_high, object bodies, object stamps, object middles,
    uint64_t expiry=*
)
