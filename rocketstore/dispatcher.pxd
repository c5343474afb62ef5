# Types for the names of dispatcher.py.
cimport cython
from cpython.array cimport array
from libc.stdint cimport int64_t

from rocketstore.format cimport words
from rocketstore.log.commitlog cimport CommitLog
from rocketstore.queues.consumequeue cimport UnitRun
from rocketstore.format.heads cimport Head
from rocketstore.format.javahash cimport absolute
from rocketstore.format.properties cimport Indexed
from rocketstore.state cimport Pending, StoreState

cdef int64_t COMMIT, ROLLBACK, TRANSACTION_MASK
cdef int _SPACE


cdef class Dispatcher:
    cdef public StoreState _state

    @cython.locals(state=StoreState, pending=Pending, log=CommitLog, offsets=array, outer=bint)
    cpdef object dispatch(self)
    cpdef object dispatch_quietly(self)
    cpdef object begin_put(self)
    cpdef object catch_up(self)
    @cython.locals(state=StoreState)
    cpdef object catch_up_or_less(self)
    @cython.locals(pending=Pending, log=CommitLog, run=UnitRun, places=array, count=Py_ssize_t, number=Py_ssize_t,
                   offset=int64_t, end=int64_t, log_end=int64_t, base=int64_t, head=Head, indexed=Indexed, now=int64_t,
                   transaction=int64_t, code=int64_t, hashes=array, owners=array, times=array, seed=int64_t, before=int64_t, ascends=bint, runs=dict,
                   noted=list, noted_place=Py_ssize_t, noted_offset=int64_t, known=Py_ssize_t, at=Py_ssize_t,
                   stop=Py_ssize_t)
    cpdef object _one_by_one(self, const unsigned char[::1] data)
