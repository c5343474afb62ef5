# Types for the names of transactions.py.
from libc.stdint cimport uint64_t

from journal.memory cimport words

cdef bytes _PUBLISHES, _COMMITS, _ONE_ID

cpdef bytes pack_published(uint64_t number, bytes name, uint64_t seq_id, bytes msg_id)
cpdef bytes pack_ack(uint64_t number, bytes boot, bytes name, uint64_t seq_id)
