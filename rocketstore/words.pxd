# Numbers and bytes of a RocketMQ store in memory, for the compiler. The interpreter's twins are in words.py.
#
# Each primitive checks that what it stores or reads lies within, and raises IndexError else.
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from journal.words cimport now_ns, push, words_big64, words_commit_word, words_is_map

cdef extern from *:
    """
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define rocket_big32(x) __builtin_bswap32(x)
    #else
    #define rocket_big32(x) (x)
    #endif

    /* CRC-32, eight bytes at a time; long bodies are left to the package, which is faster there
       than a call of it costs. */
    #define ROCKET_SHORT 1024
    static inline uint32_t rocket_crc(const unsigned char *at, Py_ssize_t size) {
        static uint32_t table[8][256];
        uint32_t crc = 0xFFFFFFFFu;
        if (table[7][255] == 0) {
            int byte, bit, row;
            for (byte = 0; byte < 256; byte++) {
                uint32_t value = (uint32_t)byte;
                for (bit = 0; bit < 8; bit++)
                    value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
                table[0][byte] = value;
            }
            for (row = 1; row < 8; row++)
                for (byte = 0; byte < 256; byte++)
                    table[row][byte] =
                        table[row - 1][byte] >> 8 ^ table[0][table[row - 1][byte] & 255];
        }
        for (; size >= 8; size -= 8, at += 8) {
            uint32_t low = crc ^ (at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24);
            uint32_t high = at[4] | at[5] << 8 | at[6] << 16 | (uint32_t)at[7] << 24;
            crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255]
                ^ table[4][low >> 24] ^ table[3][high & 255] ^ table[2][high >> 8 & 255]
                ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
        }
        for (; size > 0; size--, at++) crc = crc >> 8 ^ table[0][(crc ^ *at) & 255];
        return ~crc;
    }
    static inline int rocket_long_crc(PyObject *body, uint32_t *found) {
        static PyObject *function = NULL;
        PyObject *number;
        if (function == NULL) {
            PyObject *module = PyImport_ImportModule("rocketstore.crc");
            if (module == NULL) return -1;
            function = PyObject_GetAttrString(module, "crc32");
            Py_DECREF(module);
            if (function == NULL) return -1;
        }
        number = PyObject_CallOneArg(function, body);
        if (number == NULL) return -1;
        *found = (uint32_t)PyLong_AsUnsignedLongMask(number);
        Py_DECREF(number);
        return PyErr_Occurred() ? -1 : 0;
    }

    /* The slots of a few entries are fetched ahead: they stand anywhere in twenty megabytes. */
    #define ROCKET_AHEAD 16
    #define rocket_fetch(at) __builtin_prefetch((at), 1)

    /* String.hashCode after a prefix: four units at a time. */
    static inline uint32_t rocket_hash(PyObject *text, uint32_t total) {
        Py_ssize_t at = 0, size = PyUnicode_GET_LENGTH(text);
        if (PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND) {
            const Py_UCS1 *unit = PyUnicode_1BYTE_DATA(text);
            for (; at + 4 <= size; at += 4)
                total = total * 923521u + unit[at] * 29791u + unit[at + 1] * 961u
                    + unit[at + 2] * 31u + unit[at + 3];
            for (; at < size; at++) total = total * 31u + unit[at];
        } else {
            for (; at < size; at++) {
                Py_UCS4 unit = PyUnicode_READ_CHAR(text, at);
                if (unit > 0xFFFF) {
                    unit -= 0x10000;
                    total = total * 31u + (0xD800 + (unit >> 10));
                    unit = 0xDC00 + (unit & 0x3FF);
                }
                total = total * 31u + unit;
            }
        }
        return total;
    }
    """
    uint32_t rocket_big32(uint32_t) noexcept nogil
    uint32_t rocket_crc(const unsigned char *, Py_ssize_t) noexcept nogil
    int rocket_long_crc(object, uint32_t *) except -1
    uint32_t rocket_hash(object, uint32_t) noexcept
    Py_ssize_t ROCKET_SHORT, ROCKET_AHEAD
    void rocket_fetch(char *) noexcept nogil


cdef inline uint32_t crc_at(const char *data, Py_ssize_t size) except? 0xFFFFFFFF:
    # Of what stands in memory; as body_sum.
    cdef uint32_t found = 0
    if size <= ROCKET_SHORT:
        return rocket_crc(<const unsigned char *> data, size) & 0x7FFFFFFF
    rocket_long_crc(PyBytes_FromStringAndSize(data, size), &found)
    return found & 0x7FFFFFFF


cdef inline int64_t body_sum(bytes body) except -1:
    cdef uint32_t found = 0
    cdef Py_ssize_t size = len(body)
    if size <= ROCKET_SHORT:
        return rocket_crc(<const unsigned char *> PyBytes_AS_STRING(body), size) & 0x7FFFFFFF
    rocket_long_crc(body, &found)
    return found & 0x7FFFFFFF


cdef inline int64_t int32_at(bytes data, Py_ssize_t at) except? -1:
    cdef uint32_t number
    if at < 0 or at > len(data) - 4:
        raise IndexError("the number is not within the bytes")
    memcpy(&number, PyBytes_AS_STRING(data) + at, 4)
    return <int32_t> rocket_big32(number)


cdef inline int64_t int64_at(bytes data, Py_ssize_t at) except? -1:
    cdef uint64_t number
    if at < 0 or at > len(data) - 8:
        raise IndexError("the number is not within the bytes")
    memcpy(&number, PyBytes_AS_STRING(data) + at, 8)
    return <int64_t> words_big64(number)


cdef inline bytes piece(object view, Py_ssize_t at, Py_ssize_t end):
    cdef Py_buffer source
    cdef bytes made
    PyObject_GetBuffer(view, &source, PyBUF_SIMPLE)
    try:
        if at < 0:
            raise IndexError("a place in a map is not negative")
        end = min(end, source.len)
        made = PyBytes_FromStringAndSize(<char *> source.buf + at, end - at) if at < end else b""
    finally:
        PyBuffer_Release(&source)
    return made


cdef inline Py_ssize_t place_of(bytes data, int byte, Py_ssize_t at, Py_ssize_t end) except -1:
    cdef const char *start = PyBytes_AS_STRING(data)
    cdef const char *found
    if at < 0 or end > len(data):
        raise IndexError("the places are not within the bytes")
    if at >= end:
        return end
    found = <const char *> memchr(start + at, byte, end - at)
    return found - start if found != NULL else end


cdef inline void put_32(char *to, uint32_t number) noexcept nogil:
    number = rocket_big32(number)
    memcpy(to, &number, 4)


cdef inline void put_64(char *to, uint64_t number) noexcept nogil:
    number = words_big64(number)
    memcpy(to, &number, 8)


cdef inline void fill_message(
    char *to, uint32_t crc, bytes start, int64_t ordinal, int64_t offset, bytes stamp, bytes body,
    bytes tail
) noexcept:
    # All of a record but its first eight bytes.
    put_32(to + 8, crc)
    memcpy(to + 12, PyBytes_AS_STRING(start), 8)
    put_64(to + 20, <uint64_t> ordinal)
    put_64(to + 28, <uint64_t> offset)
    to += 36
    memcpy(to, PyBytes_AS_STRING(stamp), PyBytes_GET_SIZE(stamp))
    to += PyBytes_GET_SIZE(stamp)
    put_32(to, <uint32_t> PyBytes_GET_SIZE(body))
    memcpy(to + 4, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
    to += 4 + PyBytes_GET_SIZE(body)
    memcpy(to, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))


cdef inline Py_ssize_t store_message(
    object into, Py_ssize_t at, uint32_t crc, bytes start, int64_t ordinal, int64_t offset,
    bytes stamp, bytes body, bytes tail
) except -1:
    cdef Py_buffer target
    cdef Py_ssize_t size = 40 + len(stamp) + len(body) + len(tail)
    cdef uint64_t first = <uint64_t> size << 32 | 0xDAA320A7
    cdef uint64_t nothing = 0
    cdef bytes made
    cdef char *to
    if len(start) != 8:
        raise IndexError("queue id and flag have eight bytes")
    if type(into) is not bytearray and not words_is_map(into):
        if at < 0 or at > len(into) - size:
            raise IndexError("a record does not fit into the map")
        made = PyBytes_FromStringAndSize(NULL, size)
        to = PyBytes_AS_STRING(made)
        memcpy(to, &nothing, 8)
        fill_message(to, crc, start, ordinal, offset, stamp, body, tail)
        into[at : at + size] = made
        into[at : at + 8] = (<object> first).to_bytes(8, "big")
        return at + size
    PyObject_GetBuffer(into, &target, PyBUF_WRITABLE)
    if at < 0 or size > target.len or at > target.len - size:
        PyBuffer_Release(&target)
        raise IndexError("a record does not fit into the map")
    to = <char *> target.buf + at
    words_commit_word(to, 0)
    fill_message(to, crc, start, ordinal, offset, stamp, body, tail)
    words_commit_word(to, first)
    PyBuffer_Release(&target)
    return at + size


cdef inline bytes make_unit(int64_t offset, int64_t size, int64_t code):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 20)
    cdef char *to = PyBytes_AS_STRING(made)
    put_64(to, <uint64_t> offset)
    put_32(to + 8, <uint32_t> size)
    put_64(to + 12, <uint64_t> code)
    return made


cdef inline Py_ssize_t link_entries(
    object into, int64_t slots, int64_t first, const int64_t[::1] hashes, const int64_t[::1] offsets,
    const int64_t[::1] seconds
) except -1:
    cdef Py_buffer target
    cdef Py_ssize_t count = hashes.shape[0], used = 0, number
    cdef char *slot
    cdef char *to
    cdef uint32_t word, width
    cdef int64_t previous
    PyObject_GetBuffer(into, &target, PyBUF_WRITABLE)
    try:
        if slots <= 0 or first < 0 or slots > 0x7FFFFFFF or first > 0x7FFFFFFF:
            raise IndexError("no file has so many entries")
        if 40 + 4 * slots + 20 * (first + count) > target.len:
            raise IndexError("the entries do not fit into the file")
        if offsets.shape[0] != count or seconds.shape[0] != count:
            raise IndexError("the columns differ in length")
        for number in range(count):
            if hashes[number] < 0 or hashes[number] > 0x7FFFFFFF:
                raise IndexError("a hash is negative")
        width = <uint32_t> slots
        to = <char *> target.buf + 40 + 4 * slots + 20 * first
        for number in range(count):
            if number + ROCKET_AHEAD < count:
                rocket_fetch(
                    <char *> target.buf + 40 + 4 * (<uint32_t> hashes[number + ROCKET_AHEAD] % width)
                )
            slot = <char *> target.buf + 40 + 4 * <Py_ssize_t> (<uint32_t> hashes[number] % width)
            memcpy(&word, slot, 4)
            previous = <int32_t> rocket_big32(word)
            if previous <= 0 or previous > first + number:
                previous = 0
                used += 1
            put_32(to, <uint32_t> hashes[number])
            put_64(to + 4, <uint64_t> offsets[number])
            put_32(to + 12, <uint32_t> seconds[number])
            put_32(to + 16, <uint32_t> previous)
            put_32(slot, <uint32_t> (first + number))
            to += 20
    finally:
        PyBuffer_Release(&target)
    return used


cdef inline int64_t text_hash(str text, int64_t seed) except? -1:
    return <int32_t> rocket_hash(text, <uint32_t> seed)
