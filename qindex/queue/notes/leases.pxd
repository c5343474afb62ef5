# Types for the names of leases.py.
cimport cython

from qindex.queue.notes.entry_note cimport EntryNote


cdef class Leases:
    cdef dict _noted
    cdef public list _times
    cdef Py_ssize_t _most

    cpdef int add(self, object lease) except -1
    @cython.locals(note=EntryNote)
    cdef object _ending(self, tuple time)
