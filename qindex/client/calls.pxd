# Types for the names of calls.py.
cimport cython

from qindex.client.link cimport Home
from qindex.queue.delivery cimport BatchDelivery, Delivery


cdef class Owner:
    cdef public object queue, name, ends, settled
    cdef public Home home
    cdef public Py_ssize_t generation
    cdef public Ahead ahead

    cpdef object mark(self, Delivery delivery)
    cpdef object unmark(self, Delivery delivery)
    cpdef object check(self, Delivery delivery)
    cpdef bint is_over(self) except -1


cdef class Ahead:
    cdef public object queue, lease, owner, ready
    cdef public Py_ssize_t prefetch, last_tag, unsettled

    @cython.locals(delivery=BatchDelivery)
    cpdef BatchDelivery hand_out(self)
    @cython.locals(made=BatchDelivery, tag=Py_ssize_t)
    cpdef object take_in(self, object link, Py_ssize_t generation)


cdef Py_ssize_t _GET

cpdef Owner owner_of(object queue, object delivery)
@cython.locals(one=BatchDelivery)
cpdef tuple begin(Owner owner, Delivery delivery, Py_ssize_t verb, tuple values=*)
@cython.locals(made=BatchDelivery)
cpdef BatchDelivery received(object owner, list values)
