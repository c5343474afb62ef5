# Types for the names of dispatcher.py.
cimport cython
from cpython.array cimport array
from libc.stdint cimport int64_t

from rocketstore cimport words
from rocketstore.commitlog cimport CommitLog
from rocketstore.consumequeue cimport UnitRun
from rocketstore.heads cimport Head, read_head
from rocketstore.javahash cimport index_hash
from rocketstore.properties cimport find_indexed, split_keys
from rocketstore.state cimport Pending, StoreState

cdef int64_t COMMIT, ROLLBACK, TRANSACTION_MASK


cdef class Dispatcher:
    cdef public StoreState _state

    cpdef object dispatch(self)
    cpdef object dispatch_quietly(self)
    @cython.locals(state=StoreState)
    cpdef object catch_up(self)
    @cython.locals(pending=Pending, log=CommitLog, run=UnitRun, places=list, count=Py_ssize_t, number=Py_ssize_t,
                   offset=Py_ssize_t, end=Py_ssize_t, base=Py_ssize_t, record=Head, now=int64_t, transaction=int64_t,
                   code=int64_t, hashes=array, owners=array, times=array, seed=int64_t, one=str, keys=str, unique_key=str, tags=str, runs=dict)
    cpdef object _one_by_one(self)
