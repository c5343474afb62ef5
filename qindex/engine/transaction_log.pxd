# Types for the names of transaction_log.py.
cimport cython
from libc.stdint cimport uint64_t

from journal.locks.call_lock cimport CallLock
from journal.memory cimport words


@cython.final
cdef class Noted:
    cdef public uint64_t number
    cdef public Py_ssize_t size
    cdef public bint is_over


cdef class TransactionLog:
    cdef object __weakref__
    cdef CallLock _lock
    cdef public object _fd, _fs, _map, _numbers, _path, _poison
    cdef public Py_ssize_t _end, _limit, _live_size
    cdef public dict _live
    cdef public bint _durable, unsynced

    cpdef Noted begin(self)
    @cython.locals(lock=CallLock, size=Py_ssize_t)
    cpdef int note(self, Noted noted, bytes frame) except -1
    @cython.locals(noted=Noted)
    cpdef int end_all(self, object ended) except -1
