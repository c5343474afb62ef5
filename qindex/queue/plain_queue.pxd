# Types for the names of plain_queue.py.
from qindex.queue.delivering cimport Deliverer
from qindex.queue.producing cimport Producer
from qindex.queue.settling cimport Settler
from qindex.queue.state cimport QueueState


cdef class Queue:
    cdef object __weakref__
    cdef public object _parts
    cdef public object _engine
    cdef public object _coder
    cdef public Producer _producer
    cdef public Deliverer _deliverer
    cdef public Settler _settler
    cdef public QueueState _state
    cdef public list _owed
