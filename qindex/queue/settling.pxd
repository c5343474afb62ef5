# Types for the names of settling.py.
cimport cython

from journal.locks.patience cimport PatientLock
from qindex.index.queue_index cimport QueueIndex
from qindex.queue.delivery cimport Delivery
from qindex.queue.flushing cimport Flusher
from qindex.queue.state cimport QueueState


cdef class Settler:
    cdef public object name, outstanding
    cdef public QueueState _state
    cdef public Flusher _flusher
    cdef public object _letters, mover

    @cython.locals(state=QueueState, lock=PatientLock, index=QueueIndex, given=Delivery,
                   seq=Py_ssize_t, synced=bint)
    cpdef int ack(self, object delivery, bint waits=*) except -1
