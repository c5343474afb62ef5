# Types for the names of entry_note.py.
from libc.stdint cimport int64_t


cdef class EntryNote:
    cdef public Py_ssize_t nacked_at, lapsed_at, deliveries
    cdef public bint forgiven
    cdef public int64_t due
    cdef public bytes msg_id
    cdef public object lease
