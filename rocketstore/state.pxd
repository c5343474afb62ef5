# Types for the names of state.py.
cimport cython
from cpython.array cimport array

# First: its inline functions are not defined where journal.memory.words was cimported before it.
from rocketstore.format cimport words
from journal.locks.patience cimport PatientLock
from rocketstore.log.commitlog cimport CommitLog
from rocketstore.queues.route cimport Route
from rocketstore.log.store_clock cimport StoreClock


cdef class Pending:
    cdef public Route route
    cdef public dict codes, queues
    cdef public array offsets


cdef class StoreState:
    cdef object __weakref__
    cdef public bint changing, full, refused
    cdef public CommitLog commitlog
    cdef public StoreClock clock
    cdef public Pending pending
    cdef public dict routes
    cdef public list _opened
    cdef public PatientLock lock
    cdef public object behind, broken, options, parts, paths, poison, recovered, refusal

    @cython.locals(lock=PatientLock)
    cpdef object take(self)
    cpdef object begin_put(self)
    cpdef object begin_write(self)
    cpdef object begin_read(self)
    cpdef Route route(self, object topic, object queue_id)


cdef class Change:
    cdef public StoreState _state
    cdef public bint _outer
