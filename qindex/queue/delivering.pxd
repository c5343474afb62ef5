# Types for the names of delivering.py.
cimport cython

from journal.locks.patience cimport PatientLock
from qindex.index.queue_index cimport QueueIndex
from qindex.index.read_ahead cimport ReadAhead, Window
from qindex.queue.delivery cimport Delivery
from qindex.queue.settling cimport Settler
from qindex.queue.flushing cimport Flusher
from qindex.queue.state cimport QueueState


cdef class Deliverer:
    cdef public QueueState state
    cdef public Settler _settler
    cdef public Flusher _flusher
    cdef public object _letters, _owed, _reader

    @cython.locals(state=QueueState, lock=PatientLock, index=QueueIndex, ahead=ReadAhead, window=Window,
                   at=Py_ssize_t, seq=Py_ssize_t, given=Delivery, again=bint, noted=bint)
    cpdef Delivery get(self, object lease=*)
