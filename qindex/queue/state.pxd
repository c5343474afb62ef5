# Types for the names of state.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from journal.locks.patience cimport PatientLock
from qindex.index.queue_index cimport QueueIndex
from qindex.queue.notes.delays cimport DueTimes
from qindex.queue.notes.entry_note cimport EntryNote
from qindex.queue.wake_ups cimport Bell


cdef class QueueState:
    cdef object __weakref__
    cdef public QueueIndex index
    cdef public Py_ssize_t check_mask, delivery_limit, first_seq, most_embedded, most_plain
    cdef public uint64_t id_high, incarnation
    cdef public Py_ssize_t base
    cdef public bint draining, sync_each, to_move, watched
    cdef public dict lapsed, noted
    cdef public list owed
    cdef public PatientLock lock
    cdef public bytes middle
    cdef public tuple noted_as, tails
    cdef public Bell arrived, settled
    cdef public object alarm, calls, counts, flushed, flushing, keys, leases, levels, limits
    cdef public DueTimes later
    cdef public object message_ttl, messages, name, options, properties, room, settings, tally

    @cython.locals(lock=PatientLock)
    cpdef int take(self) except -1
    cpdef int leave(self, error) except -1
    @cython.locals(index=QueueIndex)
    cpdef int admit(self, Py_ssize_t seq, int64_t due) except -1
    @cython.locals(note=EntryNote)
    cpdef EntryNote note(self, object seq)
    cpdef int count_moved(self, Py_ssize_t seq) except -1
