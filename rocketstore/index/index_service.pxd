# Types for the names of index_service.py.
from rocketstore.index.index_file cimport IndexFile


cdef class IndexService:
    cdef public object _fs, _watch, directory, slots, entries, _clock, _open, _open_most
    cdef public bint _writable, interrupted, names_changed
    cdef public list files

    cpdef IndexFile current(self)
