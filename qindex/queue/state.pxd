# Types for the names of state.py.
from libc.stdint cimport uint64_t

from qindex.index.queue_index cimport QueueIndex


cdef class QueueState:
    cdef object __weakref__
    cdef public QueueIndex index
    cdef public Py_ssize_t delivery_limit, first_seq, holding, most_embedded, most_plain, waiting
    cdef public uint64_t id_high
    cdef public bint sync_each, watched
    cdef public dict lapsed_at, nacked_at, returns, stored_out
    cdef public object alarm, arrived, calls, counts, flushed, flushing, leases, limits, lock
    cdef public object message_ttl, messages, name, options, room, settings, settled, tally

    cpdef int take(self) except -1
    cpdef int leave(self, error) except -1
