# Types for the names of producing.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from journal.memory cimport words
from journal.locks.patience cimport PatientLock
from qindex.format.message_record cimport encode_middle
from qindex.format.publish_records cimport alike_record, framed_record, plain_record
from qindex.index.queue_index cimport QueueIndex
from qindex.index.read_ahead cimport ReadAhead
from qindex.queue.notes.delays cimport DueTimes, due_time
from qindex.queue.expiry cimport Expirer
from qindex.queue.flushing cimport Flusher
from qindex.queue.state cimport QueueState


cdef class Later:
    cdef public object then

    cpdef int announce(self, Py_ssize_t seq, bytes msg_id) except -1
    cpdef int after(self) except -1


cdef class Producer:
    cdef public QueueState state
    cdef public Flusher _flusher
    cdef public Expirer _expirer
    cdef public object room

    @cython.locals(state=QueueState, lock=PatientLock, index=QueueIndex, ahead=ReadAhead,
                   stamp=uint64_t, record=bytes, seq=Py_ssize_t, synced=bint, due=int64_t,
                   later=DueTimes)
    cpdef Py_ssize_t publish(
        self, object body, object key=*, object headers=*, object properties=*, object ttl=*,
        object persistent=*, bint confirm=*, object delay=*, object at=*,
        object unique=*, object window=*, object until=*, object priority=*
    ) except -1
    @cython.locals(
        state=QueueState, lock=PatientLock, index=QueueIndex, seq=Py_ssize_t, record=bytes
    )
    cpdef Py_ssize_t append_pending(
        self, bytes body, uint64_t id_high, Later notes
    ) except? -1
    cpdef int64_t expiry(self, object ttl) except -1
    @cython.locals(state=QueueState, room=Py_ssize_t, middle=bytes)
    cdef object _frame(
        self, object body, object key, object headers, object properties, object ttl,
        object persistent, int64_t due
    )
    @cython.locals(
        state=QueueState, index=QueueIndex, ahead=ReadAhead, stored=list, msg_id=bytes,
        is_plain=bint, seq=Py_ssize_t
    )
    cdef Py_ssize_t _publish_stored(
        self, bytes body, uint64_t stamp, bytes middle, int64_t expiry, int64_t due, bint confirm
    ) except -1

cdef int _check_parts(object key, object headers, object properties, bint any_depth=*) except -1
@cython.locals(is_table=bint)
cdef int _check_table(str name, object table, bint any_depth) except -1
@cython.locals(largest=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t _largest_of(object given) except? -1
