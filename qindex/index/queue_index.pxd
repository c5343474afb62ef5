# Types for the names of queue_index.py.
cimport cython
from libc.stdint cimport uint64_t

from journal.memory cimport words
from journal.journal cimport Journal
from qindex.index.index_reader cimport IndexReader
from qindex.index.read_ahead cimport ReadAhead, Window
from qindex.index.segment cimport Segment

cdef unsigned char ABSENT, ACKED, DELIVERED, HELD, HELD_AGAIN, MOVING, OUT, PENDING, PUBLISHED
cdef uint64_t ACK_BITS, DELIVER_BITS
cdef Py_ssize_t _WORD_SIZE


cdef class QueueIndex(IndexReader):
    cdef public Py_ssize_t acks, changing, dropped, handing_one, nacks, tail_end, taken
    cdef public Py_ssize_t flushed_bytes, flushes, _actions_flushed, _first_seq, _moved, pending
    cdef public ReadAhead ahead
    cdef public Segment recent
    cdef public set transient
    cdef public object handing
    cdef public object before_waking, poison, seq_file, _packed

    @cython.locals(seq=Py_ssize_t, journal=Journal, tail=Segment)
    cpdef Py_ssize_t append(self, bytes record) except -1
    @cython.locals(segment=Segment, rel=Py_ssize_t, journal=Journal, fresh=bint)
    cpdef bint deliver(self, Py_ssize_t seq) except -1
    cpdef bint has_any(self)
    cpdef void handed_out(self) noexcept
    @cython.locals(segment=Segment)
    cpdef int pend(self, Py_ssize_t seq) except -1
    @cython.locals(segment=Segment, rel=Py_ssize_t)
    cpdef int admit(self, Py_ssize_t seq) except -1
    @cython.locals(segment=Segment, rel=Py_ssize_t)
    cpdef bint begin_move(self, Py_ssize_t seq) except -1
    cpdef int count_moved(self, Py_ssize_t count) except -1
    @cython.locals(segment=Segment, rel=Py_ssize_t)
    cpdef int hold(self, Py_ssize_t seq) except -1
    @cython.locals(segment=Segment, rel=Py_ssize_t, journal=Journal)
    cpdef bint acknowledge(self, Py_ssize_t seq) except -1
