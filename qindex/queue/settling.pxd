# Types for the names of settling.py.
cimport cython

from qindex.index.queue_index cimport QueueIndex
from qindex.queue.delivery cimport Delivery
from qindex.queue.state cimport QueueState


cdef class Settler:
    cdef public object name, outstanding
    cdef public QueueState _state
    cdef public object _flusher, _letters

    @cython.locals(state=QueueState, given=Delivery, seq=Py_ssize_t, mask=Py_ssize_t, synced=bint,
                   index=QueueIndex)
    cpdef int ack(self, object delivery, bint waits=*) except -1
