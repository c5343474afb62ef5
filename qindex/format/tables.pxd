# Keys and tables of the usual kinds in msgpack, for the compiler. The interpreter's twin is in tables.py.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from journal.memory.words cimport words_big64

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    double PyFloat_AS_DOUBLE(object)

cdef extern from *:
    """
    /* What is packed, in a room of fixed size; what does not fit is left to msgpack. */
    #define TABLES_ROOM 1024
    typedef struct { Py_ssize_t size; char room[TABLES_ROOM]; } tables_packed;

    static inline int tables_bytes(tables_packed *to, const char *from, Py_ssize_t size) {
        if (size > TABLES_ROOM - to->size) return 0;
        memcpy(to->room + to->size, from, (size_t)size);
        to->size += size;
        return 1;
    }
    /* A byte, and the lowest `width` bytes of a number after it, the highest of them first. */
    static inline int tables_head(tables_packed *to, int tag, uint64_t number, int width) {
        char head[9];
        int at;
        head[0] = (char)tag;
        for (at = 0; at < width; at++) head[1 + at] = (char)(number >> 8 * (width - 1 - at));
        return tables_bytes(to, head, 1 + width);
    }
    static inline int tables_text(tables_packed *to, const char *text, Py_ssize_t size) {
        int fits = size < 32   ? tables_head(to, 0xA0 | (int)size, 0, 0)
                   : size < 256 ? tables_head(to, 0xD9, (uint64_t)size, 1)
                                : tables_head(to, 0xDA, (uint64_t)size, 2);
        return size < 1 << 16 && fits && tables_bytes(to, text, size);
    }
    static inline int tables_blob(tables_packed *to, const char *data, Py_ssize_t size) {
        int fits = size < 256 ? tables_head(to, 0xC4, (uint64_t)size, 1)
                              : tables_head(to, 0xC5, (uint64_t)size, 2);
        return size < 1 << 16 && fits && tables_bytes(to, data, size);
    }
    static inline int tables_integer(tables_packed *to, int64_t number) {
        uint64_t bits = (uint64_t)number;
        if (number >= 0) {
            if (bits < 1 << 7) return tables_head(to, (int)bits, 0, 0);
            if (bits < 1 << 8) return tables_head(to, 0xCC, bits, 1);
            if (bits < 1 << 16) return tables_head(to, 0xCD, bits, 2);
            if (bits <= 0xFFFFFFFFu) return tables_head(to, 0xCE, bits, 4);
            return tables_head(to, 0xCF, bits, 8);
        }
        if (number >= -32) return tables_head(to, (int)(number & 0xFF), 0, 0);
        if (number >= -128) return tables_head(to, 0xD0, bits, 1);
        if (number >= -32768) return tables_head(to, 0xD1, bits, 2);
        if (number >= INT64_C(-2147483648)) return tables_head(to, 0xD2, bits, 4);
        return tables_head(to, 0xD3, bits, 8);
    }
    static inline int tables_float(tables_packed *to, double number) {
        uint64_t bits;
        memcpy(&bits, &number, 8);
        return tables_head(to, 0xCB, bits, 8);
    }
    """
    ctypedef struct tables_packed:
        Py_ssize_t size
        char *room
    bint tables_bytes(tables_packed *, const char *, Py_ssize_t) noexcept
    bint tables_head(tables_packed *, int, uint64_t, int) noexcept
    bint tables_text(tables_packed *, const char *, Py_ssize_t) noexcept
    bint tables_blob(tables_packed *, const char *, Py_ssize_t) noexcept
    bint tables_integer(tables_packed *, int64_t) noexcept
    bint tables_float(tables_packed *, double) noexcept


cdef inline bint tables_value(tables_packed *to, object value) except -1:
    # False where it is of no simple type, or does not fit.
    cdef Py_ssize_t size = 0
    cdef const char *text
    cdef long long number
    cdef int overflow = 0
    if type(value) is str:
        text = PyUnicode_AsUTF8AndSize(value, &size)
        return tables_text(to, text, size)
    if type(value) is int:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        return not overflow and tables_integer(to, number)
    if value is None:
        return tables_head(to, 0xC0, 0, 0)
    if value is True or value is False:
        return tables_head(to, 0xC3 if value is True else 0xC2, 0, 0)
    if type(value) is float:
        return tables_float(to, PyFloat_AS_DOUBLE(value))
    if type(value) is bytes:
        return tables_blob(to, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return False


cdef inline bint tables_table(tables_packed *to, object table) except -1:
    cdef Py_ssize_t at = 0, count
    cdef PyObject *name = NULL
    cdef PyObject *value = NULL
    if type(table) is not dict:
        return False if table else tables_head(to, 0xC0, 0, 0)
    count = len(<dict> table)
    if count > 15:
        if count >= 1 << 16 or not tables_head(to, 0xDE, count, 2):
            return False
    elif not tables_head(to, 0x80 | <int> count if count else 0xC0, 0, 0):
        return False
    # Nothing here calls code that could change the table.
    while PyDict_Next(table, &at, &name, &value):
        if type(<object> name) is not str:
            return False
        if not tables_value(to, <object> name) or not tables_value(to, <object> value):
            return False
    return True


cdef inline object pack_usual(object key, object headers, object properties):
    cdef tables_packed packed
    packed.size = 0
    if not tables_value(&packed, key):
        return None
    if not tables_table(&packed, headers) or not tables_table(&packed, properties):
        return None
    return PyBytes_FromStringAndSize(packed.room, packed.size)
