# Types for the names of priorities.py.
cimport cython
from libc.stdint cimport int64_t

from qindex.index.queue_index cimport QueueIndex
from qindex.queue.delivering cimport Deliverer
from qindex.queue.delivery cimport Delivery
from qindex.queue.flushing cimport Flusher
from qindex.queue.producing cimport Producer
from qindex.queue.settling cimport Settler
from qindex.queue.state cimport QueueState


cdef class PriorityProducer(Producer):
    cdef public object _parts
    cdef public list known

    @cython.locals(at=Py_ssize_t, producer=Producer)
    cdef Producer _of(self, object priority)
    @cython.locals(producer=Producer)
    cpdef Py_ssize_t publish(
        self, object body, object key=*, object headers=*, object properties=*, object ttl=*,
        object persistent=*, bint confirm=*, object delay=*, object at=*,
        object unique=*, object window=*, object until=*, object priority=*
    ) except -1


cdef class PriorityDeliverer(Deliverer):
    cdef public object _parts
    cdef public tuple levels

    @cython.locals(level=Deliverer, state=QueueState, index=QueueIndex, given=Delivery)
    cpdef Delivery get(self, object lease=*)


cdef class PrioritySettler(Settler):
    cdef public object _parts

    cpdef object ack(self, object delivery)


cdef class PriorityFlusher(Flusher):
    cdef public object _parts
