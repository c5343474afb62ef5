# Numbers and bytes of a RocketMQ store in memory, for the compiler. The interpreter's twins are in words.py.
#
# Each primitive checks that what it stores or reads lies within, and raises IndexError else.
from cpython.array cimport array, clone
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from journal.memory.json_text cimport json_free, json_text
from journal.memory.read_words cimport u32, u64
from journal.memory.words cimport now_ns, push, words_big64, words_commit_word, words_is_map

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
    /* The same by ISA-L's function, where the library of its Python package names it: a third of
       the time. Of those for x86 the one without AVX: the others leave the registers' upper halves
       dirty, and what runs next is several times slower for it than the sum takes. */
    typedef uint32_t (*rocket_crc_type)(uint32_t, const unsigned char *, uint64_t);
    static inline rocket_crc_type rocket_fast_crc(void) {
        static rocket_crc_type found = NULL;
        static int looked = 0;
        if (!looked) {
    #ifdef __x86_64__
            const char *name =
                __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")
                    ? "crc32_gzip_refl_by8" : NULL;
    #else
            const char *name = "crc32_gzip_refl";
    #endif
            if (name != NULL) *(void **)&found = words_named_by("isal.isal_zlib", name);
            if (found != NULL && found(0, (const unsigned char *)"123456789", 9) != 0xCBF43926u)
                found = NULL;
            looked = 1;
        }
        return found;
    }
    static inline uint32_t rocket_short_crc(const unsigned char *at, Py_ssize_t size) {
        rocket_crc_type fast = rocket_fast_crc();
        return fast != NULL ? fast(0, at, (uint64_t)size) : rocket_crc(at, size);
    }
    static inline int rocket_long_crc(PyObject *body, uint32_t *found) {
        static PyObject *function = NULL;
        PyObject *number;
        if (function == NULL) {
            PyObject *module = PyImport_ImportModule("journal.memory.crc");
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

    /* The slots of a few entries are fetched ahead: they are spread over twenty megabytes. */
    #define ROCKET_AHEAD 16
    #define rocket_fetch(at) __builtin_prefetch((at), 1)

    /* String.hashCode after a prefix: eight units at a time. */
    static inline uint32_t rocket_hash_bytes(
        const unsigned char *unit, Py_ssize_t size, uint32_t total
    ) {
        for (; size >= 8; size -= 8, unit += 8)
            total = total * 2487512833u + unit[0] * 1742810335u + unit[1] * 887503681u
                + unit[2] * 28629151u + unit[3] * 923521u + unit[4] * 29791u + unit[5] * 961u
                + unit[6] * 31u + unit[7];
        for (; size > 0; size--, unit++) total = total * 31u + *unit;
        return total;
    }
    static inline int rocket_is_ascii(const unsigned char *at, Py_ssize_t size) {
        uint64_t word, high = 0;
        for (; size >= 8; size -= 8, at += 8) {
            memcpy(&word, at, 8);
            high |= word;
        }
        for (; size > 0; size--, at++) high |= *at;
        return (high & UINT64_C(0x8080808080808080)) == 0;
    }
    static inline uint32_t rocket_hash(PyObject *text, uint32_t total) {
        Py_ssize_t at = 0, size = PyUnicode_GET_LENGTH(text);
        if (PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND) {
            total = rocket_hash_bytes(PyUnicode_1BYTE_DATA(text), size, total);
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

    /* The bytes of an ASCII text; NULL for other letters. */
    static inline const char *rocket_letters(PyObject *text) {
        return PyUnicode_Check(text) && PyUnicode_IS_COMPACT_ASCII(text)
            ? (const char *)PyUnicode_1BYTE_DATA(text) : NULL;
    }
    static inline int rocket_is_value(const char *at, Py_ssize_t size) {
        return at != NULL && memchr(at, 2, size) == NULL && memchr(at, 0, size) == NULL;
    }
    static inline char *rocket_pair(char *to, char *start, const char *name, PyObject *text) {
        Py_ssize_t size = PyUnicode_GET_LENGTH(text), length = (Py_ssize_t)strlen(name);
        if (size == 0) return to;
        if (to != start) *to++ = 2;
        memcpy(to, name, length);
        to[length] = 1;
        memcpy(to + length + 1, PyUnicode_1BYTE_DATA(text), size);
        return to + length + 1 + size;
    }

    /* A named tuple of two. */
    static inline PyObject *rocket_pair_of(PyTypeObject *type, PyObject *one, PyObject *two) {
        PyObject *made = type->tp_alloc(type, 2);
        if (made == NULL) return NULL;
        PyTuple_SET_ITEM(made, 0, Py_NewRef(one));
        PyTuple_SET_ITEM(made, 1, Py_NewRef(two));
        return made;
    }

    /* A named tuple of six: two tuples are made where its type is called. */
    static inline PyObject *rocket_result(
        PyTypeObject *type, int64_t offset, int64_t size, PyObject *queue_id, int64_t ordinal,
        int64_t now, PyObject *host
    ) {
        PyObject *made = type->tp_alloc(type, 6);
        if (made == NULL) return NULL;
        PyTuple_SET_ITEM(made, 0, PyLong_FromLongLong(offset));
        PyTuple_SET_ITEM(made, 1, PyLong_FromLongLong(size));
        PyTuple_SET_ITEM(made, 2, Py_NewRef(queue_id));
        PyTuple_SET_ITEM(made, 3, PyLong_FromLongLong(ordinal));
        PyTuple_SET_ITEM(made, 4, PyLong_FromLongLong(now));
        PyTuple_SET_ITEM(made, 5, Py_NewRef(host));
        if (PyErr_Occurred()) Py_CLEAR(made);
        return made;
    }
    """
    uint32_t rocket_big32(uint32_t) noexcept nogil
    uint32_t rocket_short_crc(const unsigned char *, Py_ssize_t) noexcept
    int rocket_long_crc(object, uint32_t *) except -1
    uint32_t rocket_hash(object, uint32_t) noexcept
    uint32_t rocket_hash_bytes(const unsigned char *, Py_ssize_t, uint32_t) noexcept nogil
    bint rocket_is_ascii(const unsigned char *, Py_ssize_t) noexcept nogil
    const char *rocket_letters(object) noexcept
    bint rocket_is_value(const char *, Py_ssize_t) noexcept nogil
    char *rocket_pair(char *, char *, const char *, object) noexcept
    object rocket_pair_of(type, object, object)
    object rocket_result(type, int64_t, int64_t, object, int64_t, int64_t, bytes)
    Py_ssize_t ROCKET_SHORT, ROCKET_AHEAD
    void rocket_fetch(char *) noexcept nogil


cdef inline int64_t body_sum(bytes body) except -1:
    cdef uint32_t found = 0
    cdef Py_ssize_t size = len(body)
    if size <= ROCKET_SHORT:
        return rocket_short_crc(<const unsigned char *> PyBytes_AS_STRING(body), size) & 0x7FFFFFFF
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


cdef inline bint has_nul(bytes data, Py_ssize_t at, Py_ssize_t end) except -1:
    if at < 0 or end > len(data):
        raise IndexError("the places are not within the bytes")
    return at < end and memchr(PyBytes_AS_STRING(data) + at, 0, end - at) != NULL


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


cdef inline int64_t int32_in(const unsigned char[::1] data, Py_ssize_t at) except? -1:
    return <int32_t> u32(data, at)


cdef inline int64_t int64_in(const unsigned char[::1] data, Py_ssize_t at) except? -1:
    return <int64_t> u64(data, at)


cdef inline Py_ssize_t place_of(
    const unsigned char[::1] data, int byte, Py_ssize_t at, Py_ssize_t end
) except -1:
    cdef const unsigned char *start
    cdef const unsigned char *found
    if at < 0 or end > data.shape[0]:
        raise IndexError("the places are not within the bytes")
    if at >= end:
        return end
    start = &data[0]
    found = <const unsigned char *> memchr(start + at, byte, end - at)
    return found - start if found != NULL else end


cdef inline bint stands_at(const unsigned char[::1] data, Py_ssize_t at, bytes name) except -1:
    cdef Py_ssize_t size = len(name)
    if at < 0 or size > data.shape[0] - at:
        return False
    return size == 0 or memcmp(&data[at], PyBytes_AS_STRING(name), size) == 0


cdef inline int64_t number_at(array numbers, Py_ssize_t at) except? -1:
    if at < 0 or at >= len(numbers) or numbers.ob_descr.typecode != c'q':
        raise IndexError("no such number of 64 bits")
    return numbers.data.as_longlongs[at]


cdef inline void put_32(char *to, uint32_t number) noexcept nogil:
    number = rocket_big32(number)
    memcpy(to, &number, 4)


cdef inline void put_64(char *to, uint64_t number) noexcept nogil:
    number = words_big64(number)
    memcpy(to, &number, 8)


cdef inline void fill_message(
    char *to, uint32_t crc, bytes start, int64_t ordinal, int64_t offset, bytes stamp, bytes body,
    bytes field, bytes properties
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
    memcpy(to, PyBytes_AS_STRING(field), PyBytes_GET_SIZE(field))
    to += PyBytes_GET_SIZE(field)
    to[0] = <char> (PyBytes_GET_SIZE(properties) >> 8)
    to[1] = <char> (PyBytes_GET_SIZE(properties) & 255)
    memcpy(to + 2, PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))


cdef inline Py_ssize_t store_message(
    object into, Py_ssize_t at, uint32_t crc, bytes start, int64_t ordinal, int64_t offset,
    bytes stamp, bytes body, bytes field, bytes properties
) except -1:
    cdef Py_buffer target
    cdef Py_ssize_t size = 42 + len(stamp) + len(body) + len(field) + len(properties)
    cdef uint64_t first = <uint64_t> size << 32 | 0xDAA320A7
    cdef uint64_t nothing = 0
    cdef bytes made
    cdef char *to
    if len(start) != 8:
        raise IndexError("queue id and flag have eight bytes")
    if len(properties) > 0xFFFF:
        raise OverflowError("the length of the properties has two bytes")
    if type(into) is not bytearray and not words_is_map(into):
        if at < 0 or at > len(into) - size:
            raise IndexError("a record does not fit into the map")
        made = PyBytes_FromStringAndSize(NULL, size)
        to = PyBytes_AS_STRING(made)
        memcpy(to, &nothing, 8)
        fill_message(to, crc, start, ordinal, offset, stamp, body, field, properties)
        into[at : at + size] = made
        into[at : at + 8] = (<object> first).to_bytes(8, "big")
        return at + size
    PyObject_GetBuffer(into, &target, PyBUF_WRITABLE)
    if at < 0 or size > target.len or at > target.len - size:
        PyBuffer_Release(&target)
        raise IndexError("a record does not fit into the map")
    to = <char *> target.buf + at
    words_commit_word(to, 0)
    fill_message(to, crc, start, ordinal, offset, stamp, body, field, properties)
    words_commit_word(to, first)
    PyBuffer_Release(&target)
    return at + size


cdef inline bint measure(list bodies, int64_t[::1] lengths, int64_t[::1] sums) except -1:
    cdef Py_ssize_t number
    cdef object body
    if lengths.shape[0] != len(bodies) or sums.shape[0] != len(bodies):
        raise IndexError("the columns differ in length")
    for number in range(len(bodies)):
        body = bodies[number]
        if type(body) is not bytes:
            return False
        lengths[number] = len(<bytes> body)
        sums[number] = body_sum(<bytes> body)
    return True


cdef inline bytes batch_records(
    list bodies, object properties, const int64_t[::1] sizes, const int64_t[::1] sums,
    const int64_t[::1] flags, Py_ssize_t first, Py_ssize_t last, int64_t base, bytes start,
    int64_t ordinals, bytes stamp, bytes field
):
    cdef Py_ssize_t number, total = 0, size, fixed = 42 + len(stamp) + len(field)
    cdef bytes made, body, data = b""
    cdef list rows = None
    cdef char *to
    cdef int64_t at = 0
    if len(start) != 8:
        raise IndexError("queue id and flag have eight bytes")
    if type(properties) is bytes:
        data = properties
    else:
        rows = properties
    for number in range(first, last):
        total += sizes[number]
    made = PyBytes_FromStringAndSize(NULL, total)
    to = PyBytes_AS_STRING(made)
    for number in range(first, last):
        body = bodies[number]
        if rows is not None:
            data = rows[number]
        size = fixed + len(body) + len(data)
        if size != sizes[number] or len(data) > 0xFFFF:
            raise IndexError("a record is not as long as it was measured")
        put_32(to, <uint32_t> size)
        put_32(to + 4, 0xDAA320A7)
        fill_message(
            to, <uint32_t> sums[number], start, ordinals + number, base + at, stamp, body, field, data
        )
        if flags is not None:
            put_32(to + 16, <uint32_t> flags[number])
        to += size
        at += size
    return made


cdef inline object new_message(type kind, bytes raw, int64_t offset):
    return rocket_pair_of(kind, raw, offset)


cdef inline object new_result(
    type kind, int64_t offset, int64_t size, object queue_id, int64_t ordinal, int64_t now,
    bytes host
):
    return rocket_result(kind, offset, size, queue_id, ordinal, now, host)


cdef inline bytes join_usual(object keys, object unique_key, object tags):
    cdef const char *first = rocket_letters(keys)
    cdef const char *second = rocket_letters(unique_key)
    cdef const char *third = rocket_letters(tags)
    cdef Py_ssize_t size = -1
    cdef bytes made
    cdef char *to
    if first == NULL or second == NULL or third == NULL:
        return None
    if len(<str> keys):
        size += 6 + len(<str> keys)
    if len(<str> unique_key):
        size += 10 + len(<str> unique_key)
    if len(<str> tags):
        size += 6 + len(<str> tags)
    if (
        not rocket_is_value(first, len(<str> keys))
        or not rocket_is_value(second, len(<str> unique_key))
        or not rocket_is_value(third, len(<str> tags))
    ):
        return None
    if size < 0:
        return b""
    made = PyBytes_FromStringAndSize(NULL, size)
    to = PyBytes_AS_STRING(made)
    to = rocket_pair(to, PyBytes_AS_STRING(made), "KEYS", keys)
    to = rocket_pair(to, PyBytes_AS_STRING(made), "UNIQ_KEY", unique_key)
    rocket_pair(to, PyBytes_AS_STRING(made), "TAGS", tags)
    return made


cdef inline int add_unit(bytearray units, int64_t offset, int64_t size, int64_t code) except -1:
    cdef Py_ssize_t end = PyByteArray_GET_SIZE(units)
    cdef char *to
    PyByteArray_Resize(units, end + 20)
    to = PyByteArray_AS_STRING(units) + end
    put_64(to, <uint64_t> offset)
    put_32(to + 8, <uint32_t> size)
    put_64(to + 12, <uint64_t> code)
    return 0


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


cdef inline int64_t piece_hash(
    const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end, int64_t seed
) except? -1:
    cdef const unsigned char *start
    if at < 0 or at > end or end > data.shape[0]:
        raise IndexError("the places are not within the bytes")
    if at == end:
        return <int32_t> <uint32_t> seed
    start = &data[at]
    if rocket_is_ascii(start, end - at):
        return <int32_t> rocket_hash_bytes(start, end - at, <uint32_t> seed)
    return <int32_t> rocket_hash(
        PyUnicode_DecodeUTF8(<const char *> start, end - at, "replace"), <uint32_t> seed
    )


cdef inline int64_t text_hash(str text, int64_t seed) except? -1:
    return <int32_t> rocket_hash(text, <uint32_t> seed)


cdef extern from *:
    """
    /* Names of one message that are compared with each other. */
    #define ROCKET_NAMES 32
    /* Puts properties down as JSON, and where the values of KEYS, UNIQ_KEY and TAGS begin and end.
       False where it is not told here: a name comes twice or begins with a dollar, or a text is no
       UTF-8. */
    static int rocket_properties(
        json_text *to, const unsigned char *whole, Py_ssize_t at, Py_ssize_t end, int64_t *spans
    ) {
        static const char *const indexed[] = {"KEYS", "UNIQ_KEY", "TAGS"};
        const unsigned char *names[ROCKET_NAMES];
        Py_ssize_t sizes[ROCKET_NAMES];
        int count = 0, each;
        if (!json_put(to, "{", 1)) return 0;
        while (at < end) {
            const unsigned char *name = whole + at;
            const unsigned char *stop = (const unsigned char *)memchr(name, 2, (size_t)(end - at));
            const unsigned char *value;
            if (!stop) stop = whole + end;
            at = stop - whole + 1;
            value = (const unsigned char *)memchr(name, 1, (size_t)(stop - name));
            if (!value || value == name || ++value == stop) continue;
            if (*name == '$' || count == ROCKET_NAMES) return 0;
            names[count] = name;
            sizes[count] = value - 1 - name;
            for (each = 0; each < count; each++)
                if (sizes[each] == sizes[count] && !memcmp(names[each], name, (size_t)sizes[each]))
                    return 0;
            if ((count && !json_put(to, ", ", 2)) || !json_string(to, name, sizes[count])
                || !json_put(to, ": ", 2) || !json_string(to, value, stop - value))
                return 0;
            for (each = 0; each < 3; each++)
                if ((Py_ssize_t)strlen(indexed[each]) == sizes[count]
                    && !memcmp(indexed[each], name, (size_t)sizes[count])) {
                    spans[2 * each] = value - whole;
                    spans[2 * each + 1] = stop - whole;
                }
            count++;
        }
        return json_put(to, "}", 1);
    }
    """
    bint rocket_properties(
        json_text *, const unsigned char *, Py_ssize_t, Py_ssize_t, int64_t *
    ) noexcept


cdef inline tuple property_columns(object data, object starts, object ends):
    cdef Py_buffer source, first, last
    cdef json_text texts
    cdef array bounds, spans
    cdef bytearray told
    cdef const int64_t *start
    cdef const int64_t *end
    cdef int64_t *places
    cdef Py_ssize_t at, size, count, which
    texts.data = NULL
    texts.size = texts.room = 0
    PyObject_GetBuffer(starts, &first, PyBUF_ND)
    try:
        PyObject_GetBuffer(ends, &last, PyBUF_ND)
        try:
            count = first.len // 8
            if first.itemsize != 8 or last.itemsize != 8 or last.len != first.len:
                raise IndexError("there are no ends for so many properties")
            start = <const int64_t *> first.buf
            end = <const int64_t *> last.buf
            told = bytearray(count)
            bounds = clone(array("i"), count + 1, True)
            spans = clone(array("q"), 6 * count, False)
            PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
            try:
                for at in range(count):
                    if start[at] < 0 or end[at] < start[at] or end[at] > source.len:
                        raise IndexError("the properties lie outside of the data")
                    size = texts.size
                    places = <int64_t *> spans.data.as_longlongs + 6 * at
                    for which in range(6):
                        places[which] = start[at]
                    if rocket_properties(
                        &texts, <const unsigned char *> source.buf, start[at], end[at], places
                    ):
                        PyByteArray_AS_STRING(told)[at] = 1
                    else:
                        texts.size = size
                        for which in range(6):
                            places[which] = start[at]
                    if texts.size > 0x7FFFFFFF:
                        raise OverflowError("the properties of so many messages are too large")
                    bounds.data.as_ints[at + 1] = <int32_t> texts.size
                return PyBytes_FromStringAndSize(texts.data, texts.size), bounds, spans, told
            finally:
                PyBuffer_Release(&source)
        finally:
            PyBuffer_Release(&last)
    finally:
        PyBuffer_Release(&first)
        json_free(&texts)
