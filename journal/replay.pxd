# Types for the names of replay.py.
cimport cython
from cpython.array cimport array as numbers
from libc.stdint cimport int64_t, uint64_t

from journal.memory cimport read_words

cdef Py_ssize_t ACTION_SIZE, PUBLISH_HEAD_SIZE, _EMBEDDED, _PROBED, _RUN_PROBE
cdef uint64_t SEQ_MASK, _FIRST_STEP
cdef int TYPE_SHIFT

@cython.locals(
    kinds=numbers, seqs=numbers, offsets=numbers, lengths=numbers, size=Py_ssize_t, position=Py_ssize_t, found=Py_ssize_t, left=Py_ssize_t,
    length=Py_ssize_t, same_length=Py_ssize_t, previous_length=Py_ssize_t, word=uint64_t, kind=int, seq=int64_t,
)
cdef object _walk(
    const unsigned char[::1] view, object whole, Py_ssize_t start, int64_t seq_limit, Py_ssize_t max_records
)
