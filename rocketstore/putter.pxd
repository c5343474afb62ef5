# Types for the names of putter.py.
cimport cython
from cpython.array cimport array
from libc.stdint cimport int64_t

# First: its inline functions are not defined where journal.memory.words was cimported before it.
from rocketstore.format cimport words
from journal.locks.patience cimport PatientLock
from rocketstore.log.commitlog cimport CommitLog
from rocketstore.dispatcher cimport Dispatcher
from rocketstore.format.properties cimport encode_usual
from rocketstore.queues.route cimport Route
from rocketstore.state cimport Pending, StoreState
from rocketstore.log.store_clock cimport StoreClock

cdef Py_ssize_t PENDING_MAX, _HEAD_SIZE


cdef class Putter:
    cdef public StoreState _state
    cdef public Dispatcher _dispatcher
    cdef public object _log_sync
    cdef public bint _fsync
    cdef public Py_ssize_t _max_size
    cdef public Route _last_route

    @cython.locals(state=StoreState, clock=StoreClock, route=Route, properties=bytes, content=bytes, field=bytes,
                   size=Py_ssize_t, crc=int64_t, lock=PatientLock,
                   log=CommitLog, at=Py_ssize_t, now=int64_t, ordinal=Py_ssize_t, offset=Py_ssize_t, pending=Pending,
                   offsets=array)
    cpdef object put(
        self, object topic, object body, object queue_id, object tags, object keys, object unique_key, dict fields
    )
    cpdef Py_ssize_t _make_room(self, Py_ssize_t size) except -1
