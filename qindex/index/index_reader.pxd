# Types for the names of index_reader.py.
from cpython.array cimport array as numbers

from journal.journal cimport Journal
from qindex.format cimport plain_rows
from qindex.index.read_ahead cimport Window
from qindex.index.segment cimport Segment


cdef class IndexReader:
    cdef object __weakref__
    cdef public Journal journal
    cdef public numbers positions
    cdef public Segment tail, _reading
    cdef public Py_ssize_t next_seq, positions_base, entry_count, _live_before
    cdef public bytes middle
    cdef public object damaged, directory, findings, fs, lost_entries, segments

    cpdef Segment segment_of(self, Py_ssize_t seq_id)
    cpdef tuple read_new(self, Py_ssize_t seq)
