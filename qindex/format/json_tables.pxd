# Headers and properties as JSON, for the compiler. The interpreter's twin is in json_tables.py.
from cpython.array cimport array, clone
from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t

from journal.memory.json_text cimport json_free, json_text

cdef extern from *:
    """
    /* Levels of a table that are told here: the interpreter tells deeper ones. */
    #define JSON_LEVELS 32

    static inline uint64_t json_big(const unsigned char *from, int size) {
        uint64_t number = 0;
        while (size--) number = number << 8 | *from++;
        return number;
    }
    static inline int json_integer(json_text *to, uint64_t number, int negative) {
        char digits[20];
        int at = 20;
        if (negative) number = 0 - number;
        do digits[--at] = (char)('0' + number % 10); while (number /= 10);
        return (!negative || json_put(to, "-", 1)) && json_put(to, digits + at, 20 - at);
    }
    static int json_float(json_text *to, double number) {
        char *text;
        int done;
        if (number != number || number - number != 0) return 0;
        text = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
        done = text && json_put(to, text, (Py_ssize_t)strlen(text));
        PyMem_Free(text);
        return done;
    }
    static int json_base64(json_text *to, const unsigned char *from, Py_ssize_t size) {
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        if (!json_put(to, "{\\"$base64\\": \\"", 13)) return 0;
        for (; size > 0; from += 3, size -= 3) {
            uint32_t bits = (uint32_t)from[0] << 16 | (size > 1 ? from[1] << 8 : 0)
                | (size > 2 ? from[2] : 0);
            char four[4];
            four[0] = digits[bits >> 18];
            four[1] = digits[bits >> 12 & 63];
            four[2] = size > 1 ? digits[bits >> 6 & 63] : '=';
            four[3] = size > 2 ? digits[bits & 63] : '=';
            if (!json_put(to, four, 4)) return 0;
        }
        return json_put(to, "\\"}", 2);
    }
    /* Moves `at` past the msgpack value there, and puts the value down. False, as from all of these
       functions, for a value that is not handled here, or if memory runs out. */
    static int json_value(
        json_text *to, const unsigned char **at, const unsigned char *end, int levels
    ) {
        /* What a head says: the bytes of its number, or of the size after it. */
        static const signed char widths[32] = {
            0, -1, 0, 0, 1, 2, 4, -1, -1, -1, 4, 8, 1, 2, 4, 8,
            1, 2, 4, 8, -1, -1, -1, -1, -1, 1, 2, 4, 2, 4, 2, 4,
        };
        const unsigned char head = *at < end ? *(*at)++ : 0xC1;
        enum { NUMBER, TEXT, BYTES, LIST, MAP } kind = NUMBER;
        uint64_t number = head, each;
        if (head >= 0xE0) return json_integer(to, (uint64_t)(int64_t)(signed char)head, 1);
        if (head >= 0xC0) {
            int width = widths[head - 0xC0];
            if (width < 0 || width > end - *at) return 0;
            number = json_big(*at, width);
            *at += width;
            if (head == 0xC0) return json_put(to, "null", 4);
            if (head == 0xC2) return json_put(to, "false", 5);
            if (head == 0xC3) return json_put(to, "true", 4);
            if (head == 0xCA) {
                uint32_t bits = (uint32_t)number;
                float real;
                memcpy(&real, &bits, 4);
                return json_float(to, real);
            }
            if (head == 0xCB) {
                double real;
                memcpy(&real, &number, 8);
                return json_float(to, real);
            }
            if (head >= 0xD0 && head <= 0xD3 && number >> (8 * width - 1))
                return json_integer(to, width == 8 ? number : number | UINT64_MAX << 8 * width, 1);
            kind = head <= 0xC6 ? BYTES : head <= 0xD3 ? NUMBER
                : head <= 0xDB ? TEXT : head <= 0xDD ? LIST : MAP;
        } else if (head >= 0xA0) {
            kind = TEXT;
            number = head & 0x1F;
        } else if (head >= 0x80) {
            kind = head >= 0x90 ? LIST : MAP;
            number = head & 0x0F;
        }
        if (kind == NUMBER) return json_integer(to, number, 0);
        if (kind == TEXT || kind == BYTES) {
            const unsigned char *from = *at;
            if (number > (uint64_t)(end - from)) return 0;
            *at += number;
            return kind == TEXT ? json_string(to, from, (Py_ssize_t)number)
                                : json_base64(to, from, (Py_ssize_t)number);
        }
        if (!levels || !json_put(to, kind == MAP ? "{" : "[", 1)) return 0;
        for (each = 0; each < number; each++) {
            if (each && !json_put(to, ", ", 2)) return 0;
            if (kind == MAP) {
                Py_ssize_t key = to->size;
                /* The key must be a text without a leading dollar: other maps have another form. */
                if (!json_value(to, at, end, 0) || to->data[key] != '"'
                    || to->data[key + 1] == '$' || !json_put(to, ": ", 2))
                    return 0;
            }
            if (!json_value(to, at, end, levels - 1)) return 0;
        }
        return json_put(to, kind == MAP ? "}" : "]", 1);
    }
    static inline int json_table(
        json_text *to, const unsigned char **at, const unsigned char *end
    ) {
        if (*at < end && **at == 0xC0) {
            ++*at;
            return json_put(to, "{}", 2);
        }
        if (*at == end || ((**at & 0xF0) != 0x80 && **at < 0xDE) || **at > 0xDF) return 0;
        return json_value(to, at, end, JSON_LEVELS);
    }
    /* Puts both tables down that are all there is from `at` on; nothing, where it can't. */
    static inline int json_both(
        json_text *headers, json_text *properties, const unsigned char *at, const unsigned char *end
    ) {
        Py_ssize_t first = headers->size, second = properties->size;
        if (json_table(headers, &at, end) && json_table(properties, &at, end) && at == end) return 1;
        headers->size = first;
        properties->size = second;
        return 0;
    }
    """
    bint json_both(
        json_text *, json_text *, const unsigned char *, const unsigned char *
    ) noexcept


cdef inline tuple json_tables(object data, object starts, object ends):
    cdef Py_buffer source, first, last
    cdef json_text headers, properties
    cdef array header_ends, property_ends
    cdef bytearray sound
    cdef const unsigned char *whole
    cdef const int64_t *start
    cdef const int64_t *end
    cdef Py_ssize_t at, count
    headers.data = properties.data = NULL
    headers.size = properties.size = headers.room = properties.room = 0
    PyObject_GetBuffer(starts, &first, PyBUF_ND)
    try:
        PyObject_GetBuffer(ends, &last, PyBUF_ND)
        try:
            count = first.len // 8
            if first.itemsize != 8 or last.itemsize != 8 or last.len != first.len:
                raise IndexError("there are no ends for so many tables")
            start = <const int64_t *> first.buf
            end = <const int64_t *> last.buf
            sound = bytearray(count)
            header_ends = clone(array("i"), count + 1, True)
            property_ends = clone(array("i"), count + 1, True)
            PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
            try:
                whole = <const unsigned char *> source.buf
                for at in range(count):
                    if start[at] < 0 or end[at] < start[at] or end[at] > source.len:
                        raise IndexError("the tables lie outside of the data")
                    PyByteArray_AS_STRING(sound)[at] = json_both(
                        &headers, &properties, whole + start[at], whole + end[at]
                    )
                    if headers.size > 0x7FFFFFFF or properties.size > 0x7FFFFFFF:
                        raise OverflowError("the tables of so many messages are too large")
                    header_ends.data.as_ints[at + 1] = <int32_t> headers.size
                    property_ends.data.as_ints[at + 1] = <int32_t> properties.size
                return (
                    PyBytes_FromStringAndSize(headers.data, headers.size), header_ends,
                    PyBytes_FromStringAndSize(properties.data, properties.size), property_ends,
                    sound,
                )
            finally:
                PyBuffer_Release(&source)
        finally:
            PyBuffer_Release(&last)
    finally:
        PyBuffer_Release(&first)
        json_free(&headers)
        json_free(&properties)
