# Types for the names of wake_ups.py.
from journal.locks.patience cimport PatientLock


cdef class Bell:
    cdef object __weakref__
    cdef public Py_ssize_t waiting
    cdef PatientLock _lock
    cdef dict _listeners

    cpdef object notify(self, Py_ssize_t n=*)
