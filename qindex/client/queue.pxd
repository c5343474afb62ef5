# Types for the names of queue.py.
cimport cython

from qindex.client.calls cimport Owner, begin, received
from qindex.client.link cimport Home
from qindex.queue.delivery cimport Delivery


cdef class SharedOwner(Owner):
    cdef public object consumer

    cpdef list make(self, tuple request)
    cpdef list settle(self, Delivery delivery, Py_ssize_t verb, tuple values=*)


cdef class SharedQueue:
    cdef object __weakref__
    cdef public object _call, _make, name
    cdef public tuple at
    cdef public Home _home
    cdef public SharedOwner _owner

    cpdef SharedOwner _owner_of(self, object delivery)
