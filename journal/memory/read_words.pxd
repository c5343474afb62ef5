# Numbers and checksums of bytes that are read, for the compiler. The interpreter's twins are in
# read_words.py.
#
# Each primitive checks that what it reads lies within, and raises IndexError else.
from cpython.array cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from journal.memory.words cimport push, words_big64, words_grow_by_one, words_has_room, words_sum


cdef inline int u16(const unsigned char[::1] view, Py_ssize_t at) except -1:
    if at < 0 or at > view.shape[0] - 2:
        raise IndexError("the number is not within the bytes")
    return view[at] << 8 | view[at + 1]


cdef inline uint32_t u32(const unsigned char[::1] view, Py_ssize_t at) except? 0xFFFFFFFF:
    cdef uint64_t number = 0
    if at < 0 or at > view.shape[0] - 4:
        raise IndexError("the number is not within the bytes")
    memcpy(<char *> &number, &view[at], 4)
    return <uint32_t> (words_big64(number) >> 32)


cdef inline uint64_t u64(const unsigned char[::1] view, Py_ssize_t at) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t number
    if at < 0 or at > view.shape[0] - 8:
        raise IndexError("the number is not within the bytes")
    memcpy(&number, &view[at], 8)
    return words_big64(number)


cdef inline int put_record(
    array kinds, array seqs, array offsets, array lengths, int kind, int64_t seq, int64_t offset, int64_t length
) except -1:
    if kinds.ob_descr.typecode == c'B' and words_has_room(kinds):
        kinds.data.as_uchars[len(kinds)] = <unsigned char> kind
        words_grow_by_one(kinds)
    else:
        kinds.append(kind)
    push(seqs, seq)
    push(offsets, offset)
    push(lengths, length)
    return 0


cdef inline bytes block_sums(object data, Py_ssize_t block):
    cdef Py_buffer source
    cdef Py_ssize_t at = 0, size
    cdef uint64_t found = 0
    cdef bytes made
    cdef char *to
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        if block <= 0:
            raise IndexError("a block has bytes")
        made = PyBytes_FromStringAndSize(NULL, (source.len + block - 1) // block * 8)
        to = PyBytes_AS_STRING(made)
        while at < source.len:
            size = min(block, source.len - at)
            words_sum(<char *> source.buf + at, size, &found)
            found = words_big64(found)
            memcpy(to, &found, 8)
            to += 8
            at += block
    finally:
        PyBuffer_Release(&source)
    return made
