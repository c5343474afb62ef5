# Types for the names of publish_records.py.
from libc.stdint cimport uint64_t

from journal cimport words

cdef tuple PLAIN_HEADS

cpdef bytes framed_record(
    object seq_id, object id_high, object body, object stamp, bytes middle, object expiry=*
)
cpdef bytes plain_record(uint64_t seq_id, uint64_t id_high, bytes body, uint64_t stamp)
