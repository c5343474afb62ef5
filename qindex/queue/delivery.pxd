# Types for the names of delivery.py.
cimport cython


@cython.freelist(256)
cdef class Delivery:
    cdef public object _queue, _extra, body
    cdef public Py_ssize_t _count, seq_id
    cdef public bint redelivered


cdef class BatchDelivery(Delivery):
    cdef public Py_ssize_t taken
