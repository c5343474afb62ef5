# Types for the names of shared_queue.py.
cimport cython

from qindex.client.calls cimport Ahead, Owner, begin, owner_of, received
from qindex.client.link cimport Home, Link, Opens
from qindex.queue.delivery cimport Delivery

cdef Py_ssize_t _PUBLISH, _GET, _ACK


cdef class SharedOwner(Owner):
    cdef public object consumer

    @cython.locals(its_consumer=SharedConsumer)
    cpdef list make(self, tuple request)
    cpdef list settle(self, Delivery delivery, Py_ssize_t verb, tuple values=*)


cdef class SharedQueue(Opens):
    cdef object __weakref__
    cdef public object _call, _coder, _make
    cdef public SharedOwner _owner

    @cython.locals(home=Home, its_owner=SharedOwner, owner=SharedOwner, values=list)
    cpdef object _get(self, object timeout, object lease, object ack, object seq_id)
    cpdef SharedOwner _owner_of(self, object delivery)


cdef class SharedConsumer:
    cdef object __weakref__
    cdef public Link _link
    cdef public SharedQueue _queue
    cdef public Ahead _ahead
    cdef public object _timeout, _busy
    cdef public bint stopped, _is_waiting

    @cython.locals(link=Link, reply=list)
    cpdef list make(self, tuple request)
