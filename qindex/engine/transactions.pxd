# Types for the names of transactions.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from journal.locks.call_lock cimport CallLock
from journal.locks.patience cimport PatientLock
from qindex.engine.moves cimport Moves
from qindex.engine.transaction_log cimport Noted, TransactionLog
from qindex.format.transactions cimport pack_ack, pack_published
from qindex.queue.delivery cimport Delivery
from qindex.queue.producing cimport Later, Producer
from qindex.queue.plain_queue cimport Queue
from qindex.queue.settling cimport Settler
from qindex.queue.state cimport QueueState


cdef class _Part(Later):
    cdef TransactionLog _log
    cdef Noted _transaction
    cdef public object parts
    cdef public QueueState state
    cdef int64_t _due
    cdef Py_ssize_t _noted, _seq, _size
    cdef bytes _msg_id

    @cython.locals(state=QueueState, name=bytes)
    cpdef int announce(self, Py_ssize_t seq, bytes msg_id) except -1
    cpdef int after(self) except -1
    cdef int admit(self) except -1


cdef class Transactions:
    cdef public object calls, parts_of
    cdef public bytes boot
    cdef public uint64_t id_high
    cdef public CallLock lock
    cdef public TransactionLog log
    cdef public Moves moves
    cdef public set open


cdef class Transaction:
    cdef object __weakref__
    cdef public Transactions _all
    cdef public uint64_t _number
    cdef uint64_t _id_high
    cdef bint _is_open, _owes_settling
    cdef Noted _noted
    cdef public list _parts, _acks

    @cython.locals(every=Transactions, part=_Part, producer=Producer, seq=Py_ssize_t)
    cdef Py_ssize_t _publish_body(self, object queue, bytes body) except? -2
    @cython.locals(every=Transactions, settler=Settler)
    cpdef int ack(self, object delivery) except -1
    cdef Transactions _checked(self)
    @cython.locals(every=Transactions)
    cdef int _begin(self) except -1
    @cython.locals(
        every=Transactions, moves=Moves, lock=CallLock, part=_Part, state=QueueState, targets=list
    )
    cdef int _commit(self) except -1
    @cython.locals(
        every=Transactions, moves=Moves, part=_Part, state=QueueState, owner=Settler,
        delivery=Delivery, states=list, locks=list, frame=bytes, is_done=bint
    )
    cdef int _commit_held(self, list targets) except -1
    @cython.locals(delivery=Delivery, owner=Settler, last=Settler, name=bytes)
    cdef bytes _frame(self, Transactions every)
    @cython.locals(part=_Part)
    cdef _Part _new_part(self, object parts)

@cython.locals(given=Queue)
cdef object _parts_of(Transactions every, object queue)
@cython.locals(lock=PatientLock, state=QueueState, locks=list)
cdef list _locks_of(list states)
cdef int _add(list to, object one) except -1
cdef Settler _owner_of(Delivery delivery)
cdef tuple _noted_as(QueueState state)
@cython.locals(first=Py_ssize_t)
cdef int _take_together(list locks) except -1
@cython.locals(lock=PatientLock)
cdef int _release(list locks) except -1
@cython.locals(lock=PatientLock, at=Py_ssize_t)
cdef Py_ssize_t _try_all(list locks, Py_ssize_t held) except -2
