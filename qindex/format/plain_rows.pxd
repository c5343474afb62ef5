# Records of plain messages, read many at once; for the compiler. The interpreter's twin is in plain_rows.py.
from cpython.array cimport array, clone, resize
from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from journal.memory.words cimport words_big64, words_sum

cdef extern from *:
    """
    /* The layout: qindex/format/plain_record.py. A payload has 32 bytes: message id, expiry, sizes
       of body and record. A record has 20 up to its middle: magic, checksum, tag, timestamp. The
       middle of a plain message is three nils. */
    #define PLAIN_ON_STACK 2048
    static inline uint64_t plain_number(const unsigned char *at) {
        uint64_t number;
        memcpy(&number, at, 8);
        return words_big64(number);
    }
    /* Gives the size of the body of the record with this middle at `record`, of which `left` bytes
       are there, and puts its own size into `whole`; -1 where it is another kind's. */
    static inline Py_ssize_t plain_size(
        const unsigned char *payload, Py_ssize_t left, const char *middle, Py_ssize_t length,
        Py_ssize_t *whole
    ) {
        const unsigned char *record = payload + 32, *head = record + 20 + length;
        uint64_t sizes;
        Py_ssize_t size, before;
        int fits;
        if (left < 32 + 22 + length) return -1;
        sizes = plain_number(payload + 24);
        size = (Py_ssize_t)(sizes >> 32);
        *whole = (Py_ssize_t)(sizes & 0xFFFFFFFFu);
        if (plain_number(payload + 16) != 0 || *whole > left - 32) return -1;
        if (memcmp(record, "\\x97\\x01\\xcf", 3) || record[11] != 0xCF) return -1;
        if (memcmp(record + 20, middle, length)) return -1;
        before = size < 1 << 8 ? 2 : size < 1 << 16 ? 3 : 5;
        if (*whole != 20 + length + before + size) return -1;
        if (before == 2)
            fits = head[0] == 0xC4 && head[1] == size;
        else if (before == 3)
            fits = head[0] == 0xC5 && (head[1] << 8 | head[2]) == size;
        else
            fits = head[0] == 0xC6 && ((Py_ssize_t)head[1] << 24 | head[2] << 16 | head[3] << 8
                                       | head[4]) == size;
        return fits ? size : -1;
    }
    """
    const Py_ssize_t PLAIN_ON_STACK
    uint64_t plain_number(const unsigned char *) noexcept nogil
    Py_ssize_t plain_size(
        const unsigned char *, Py_ssize_t, const char *, Py_ssize_t, Py_ssize_t *
    ) noexcept nogil


cdef inline bint plain_is_sound(
    const unsigned char *record, Py_ssize_t size, unsigned char *copy
) except -1:
    # Whether the checksum holds of a journal's publish record; it is taken of a copy, with zeros in
    # its place.
    cdef uint64_t found = 0
    memcpy(copy, record, size)
    memset(copy + 43, 0, 8)
    words_sum(<char *> copy, size, &found)
    return found == plain_number(record + 43)


cdef inline tuple read_run(
    object data, object offsets, Py_ssize_t start, Py_ssize_t count, uint64_t first_seq,
    Py_ssize_t most_bytes, bint in_journal, bytes middle
):
    cdef Py_ssize_t before = 8 if in_journal else 2
    cdef list bodies = []
    cdef array stamps = clone(array("Q"), count, False)
    cdef Py_buffer source, places
    cdef const unsigned char *payload
    cdef const int64_t *at
    cdef unsigned char on_stack[2048]
    cdef unsigned char *copy = on_stack
    cdef unsigned char *larger = NULL
    cdef Py_ssize_t done = 0, room = PLAIN_ON_STACK, size, total = 0, whole = 0
    PyObject_GetBuffer(offsets, &places, PyBUF_ND)
    try:
        if places.itemsize != 8 or start < 0 or count < 0 or start + count > places.len // 8:
            raise IndexError("there are no offsets for so many records")
        at = <const int64_t *> places.buf + start
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            while done < count:
                if at[done] < 0 or at[done] > source.len - before:
                    break
                payload = <const unsigned char *> source.buf + at[done] + before
                size = plain_size(
                    payload, source.len - before - at[done], PyBytes_AS_STRING(middle),
                    len(middle), &whole
                )
                total += whole
                if size < 0 or (done and total > most_bytes):
                    break
                if in_journal:
                    if plain_number(payload - 8) != first_seq + <uint64_t> done:
                        break
                    if 40 + whole > room:
                        PyMem_Free(larger)
                        room = 40 + whole
                        larger = copy = <unsigned char *> PyMem_Malloc(room)
                        if larger == NULL:
                            raise MemoryError
                    if not plain_is_sound(payload - 8, 40 + whole, copy):
                        break
                bodies.append(PyBytes_FromStringAndSize(<char *> payload + 32 + whole - size, size))
                stamps.data.as_ulonglongs[done] = plain_number(payload + 44)
                done += 1
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&places)
        PyMem_Free(larger)
    resize(stamps, done)
    return bodies, stamps
