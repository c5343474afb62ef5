# Types for the names of moves.py.
cimport cython

from journal.locks.call_lock cimport CallLock
from qindex.engine.transaction_log cimport Noted, TransactionLog


@cython.final
cdef class _Pending:
    cdef public list seqs
    cdef public list targets


cdef class Moves:
    cdef object __weakref__
    cdef public object _alarm, _asked, _background, _idle, _queue_of, _rounds, _server, poison
    cdef public bytes boot
    cdef public CallLock lock
    cdef public TransactionLog log
    cdef public dict _pending, _unsynced
    cdef public list _unsettled
    cdef public Py_ssize_t pending
    cdef public bint _alarmed, _closed, fsync

    cpdef int check(self) except -1
    @cython.locals(pending=_Pending)
    cpdef int settle_with(
        self, Noted noted, object source, list seqs, list targets
    ) except -1
    @cython.locals(unsettled=list)
    cdef int _forget_later(self, Noted noted) except -1
    cpdef int follow_up(self, Py_ssize_t most) except -1
    @cython.locals(one=_Pending)
    cdef int _settle(self) except -1
    @cython.locals(one=_Pending)
    cdef int _acknowledge(self) except -1
