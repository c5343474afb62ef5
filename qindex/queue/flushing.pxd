# Types for the names of flushing.py.
cimport cython

from journal.journal cimport Journal
from qindex.index.queue_index cimport QueueIndex
from qindex.queue.state cimport QueueState

cdef Py_ssize_t _SEAL_AT_LEAST


cdef class Flusher:
    cdef object __weakref__
    cdef public QueueState state
    cdef public object mover, request, times
    cdef public Py_ssize_t max_dirty, _pressing, _retry_at, _ticks, _usual_mask

    @cython.locals(state=QueueState, index=QueueIndex, journal=Journal, dirty=Py_ssize_t)
    cpdef int tick(self, list owed=*) except -1
    cdef int _owe(self, list owed) except -1
