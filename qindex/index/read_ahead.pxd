# Types for the names of read_ahead.py.
cimport cython
from cpython.array cimport array as numbers

from journal.memory cimport words
from qindex.index.segment cimport Segment

cdef unsigned char PUBLISHED


cdef class Window:
    cdef public Py_ssize_t base, room
    cdef public Segment segment
    cdef public numbers seqs
    cdef public list bodies
    cdef public object extras
    cdef public bytearray states
    cdef public bint plain

    cpdef object let_go(self, Py_ssize_t at)


cdef class ReadAhead:
    cdef public Window window
    cdef public object rest, staged
    cdef public Py_ssize_t at, next_fetch, rest_at
    cdef public list returned
    cdef public dict returned_by_seq

    cpdef bint is_empty(self)
    @cython.locals(window=Window)
    cpdef bint keeps_up(self, Segment segment, Py_ssize_t seq, Py_ssize_t size) except -1
    @cython.locals(window=Window)
    cpdef int add(self, Py_ssize_t seq, bytes body, object extra) except -1
