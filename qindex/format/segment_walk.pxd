# Types for the names of segment_walk.py.
cimport cython
from cpython.array cimport array as numbers
from libc.stdint cimport int64_t

from journal.memory cimport read_words

cdef Py_ssize_t PUBLISH_HEAD_SIZE, STEP_SIZE, _EMBEDDED, _RUN_PROBE
cdef int NEXT_STEP, PUBLISH, REL_MASK, _KIND_SHIFT

@cython.locals(
    kinds=numbers, seqs=numbers, offsets=numbers, lengths=numbers, position=Py_ssize_t, found=Py_ssize_t, left=Py_ssize_t, length=Py_ssize_t,
    same_length=Py_ssize_t, previous_length=Py_ssize_t, head=int, embedded=Py_ssize_t, kind=int, rel=Py_ssize_t,
    seq=int64_t,
)
cdef object _walk(
    const unsigned char[::1] view, object whole, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t first_seq,
    Py_ssize_t entry_count, Py_ssize_t max_embedded, Py_ssize_t max_records
)
