# Types for the names of waiting.py.
cimport cython

from qindex.queue.state cimport QueueState


cdef class _Gate:
    cdef object _gate
    cdef list _unrung
    cdef public QueueState rung_by

    cpdef object wait(self, object seconds)

@cython.locals(gate=_Gate, rung_by=QueueState, state=QueueState)
cpdef object take_first(object states, object take, object timeout, object is_stopped=*)
