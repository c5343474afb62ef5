# Types for the names of journal.py.
cimport cython
from libc.stdint cimport uint64_t

from journal.memory cimport words

cdef Py_ssize_t ACTION_SIZE, START_SIZE


cdef class Journal:
    cdef object __weakref__
    cdef public Py_ssize_t end, highest, limit, word_limit
    cdef public object map
    cdef public bint at_rest, in_reserve
    cdef public object before_waking, entries, path, synced, syncs
    cdef public object _allocated, _closed, _commits, _fd, _files, _fs, _kept, _mapped, _name_synced
    cdef public object _poison, _rebases, _rebases_synced, _retired, _stopwatch, _sums
    cdef public object _syncing
    cdef public Py_ssize_t _sealed

    @cython.locals(start=Py_ssize_t)
    cpdef Py_ssize_t store(self, object record) except -1
    @cython.locals(start=Py_ssize_t)
    cpdef int store_word(self, uint64_t word) except -1
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t)
    cpdef object seal(self, Py_ssize_t at_least=*)
