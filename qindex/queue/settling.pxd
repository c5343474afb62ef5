# Types for the names of settling.py.
cimport cython

from journal.locks.patience cimport PatientLock
from qindex.index.queue_index cimport QueueIndex
from qindex.queue.delivery cimport Delivery
from qindex.queue.flushing cimport Flusher
from qindex.queue.state cimport QueueState


cdef class Settler:
    cdef public object name, outstanding
    cdef public QueueState state
    cdef public Flusher _flusher
    cdef public object letters, mover

    @cython.locals(state=QueueState, lock=PatientLock, index=QueueIndex, given=Delivery,
                   seq=Py_ssize_t, synced=bint)
    cpdef object ack(self, object delivery)
    @cython.locals(state=QueueState, lock=PatientLock)
    cpdef int begin_move(self, Delivery delivery) except -1
    @cython.locals(state=QueueState, seq=Py_ssize_t)
    cpdef Py_ssize_t end_move(self, Delivery delivery) except -1
