# Types for the names of sessions.py.
cimport cython

from qindex.queue.delivering cimport Deliverer
from qindex.queue.flushing cimport Flusher
from qindex.queue.producing cimport Producer
from qindex.queue.settling cimport Settler
from qindex.queue.state cimport QueueState


cdef class Served:
    cdef public object publish, queue
    cdef public Py_ssize_t number
    cdef public QueueState state
    cdef public Flusher flusher
    cdef public Producer producer
    cdef public Deliverer deliverer
    cdef public Settler settler
    cdef public bint sync_each


cdef class Credit:
    cdef public Served served
    cdef public Py_ssize_t prefetch
    cdef public object lease
    cdef public set held
    cdef public bint is_hungry

    @cython.locals(held=Py_ssize_t)
    cpdef Py_ssize_t room(self) except? -1


cdef class Session:
    cdef public object id
    cdef public bint has_said_bye
    cdef public dict _held, _lapsed
    cdef public Py_ssize_t _next_tag, _sweep_at

    @cython.locals(number=Py_ssize_t)
    cpdef Py_ssize_t hold(self, Served served, object delivery, Credit credit=*) except -1
    @cython.locals(held=tuple)
    cpdef object find(self, Served served, object tag, object seq_id)
    @cython.locals(held=tuple, credit=object)
    cpdef Credit forget(self, object tag, object seq_id)
