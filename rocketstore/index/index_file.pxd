# Types for the names of index_file.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore.format cimport words
from rocketstore.format.index_format cimport IndexHeader
from rocketstore.log.mapped_files cimport MappedFile

cdef Py_ssize_t ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE
cdef int64_t _FAR


cdef class IndexFile(MappedFile):
    cdef public object name
    cdef public IndexHeader header
    cdef public Py_ssize_t _entries_at, slots, entries

    cpdef bytes read(self, Py_ssize_t position, Py_ssize_t length)
    cpdef int64_t _newest(self, int64_t key_hash) except? -1
    cdef bytes _entry(self, int64_t number)
    @cython.locals(count=int64_t, number=int64_t, last=int64_t, entry=bytes, first_time=int64_t, moment=int64_t)
    cpdef list candidates(self, int64_t key_hash, int64_t begin, int64_t end)
