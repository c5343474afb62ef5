/* Reading one message of our own format that has no headers and no properties, if it is sound:
 * qindex/record_format.py has the layout of its record. */

#include "shared.h"

/* Of a record. */
#define TIME_TAG_AT 11
#define TIME_AT 12
#define KEY_AT 20
#define SHORTEST_RECORD 25
/* Tags of msgpack. */
#define NIL 0xc0
#define UINT64 0xcf
#define STR8 0xd9
#define BIN8 0xc4
#define BIN16 0xc5
#define BIN32 0xc6

typedef struct {
    unsigned long long expiry, stamp;
    Py_ssize_t embedded, key_size, size;
    const char *key, *body;
} Parts;

/* Find the key; gives what stands behind it, or NULL where there is something else. */
static const char *
find_key(const char *at, const char *end, Parts *parts)
{
    unsigned char tag = (unsigned char)*at++;
    parts->key = NULL;
    if (tag == NIL) {
        return at;
    }
    if ((tag & 0xe0) == 0xa0) {
        parts->key_size = tag & 0x1f;
    } else if (tag == STR8) {
        parts->key_size = (unsigned char)*at++;
    } else {
        return NULL;
    }
    parts->key = at;
    return parts->key_size <= end - at ? at + parts->key_size : NULL;
}

/* Find the body, which is all the rest, behind its shortest head. */
static int
find_body(const char *at, const char *end, Parts *parts)
{
    if (end - at < 1) {
        return 0;
    }
    unsigned char tag = (unsigned char)*at++;
    int head = tag == BIN8 ? 1 : tag == BIN16 ? 2 : tag == BIN32 ? 4 : 0;
    if (head == 0 || end - at < head) {
        return 0;
    }
    Py_ssize_t size = (Py_ssize_t)big_endian(at, head);
    parts->body = at + head;
    parts->size = size;
    return size == end - parts->body && head == (size < 1 << 8 ? 1 : size < 1 << 16 ? 2 : 4);
}

/* Find the parts of the message whose id stands at `payload`: 1; 0: it is of another kind. */
static int
find_parts(const char *data, Py_ssize_t length, long long payload, Parts *parts)
{
    if (payload < 0 || payload > length - ID_SIZE - SIZES_SIZE) {
        return 0;
    }
    const char *sizes = data + payload + ID_SIZE, *record = sizes + SIZES_SIZE;
    parts->expiry = big_endian(sizes, WORD_SIZE);
    parts->embedded = (Py_ssize_t)big_endian(sizes + BODY_SIZE_AT + 4, 4);
    if (parts->embedded < SHORTEST_RECORD || parts->embedded > length - (record - data)
        || memcmp(record, PyBytes_AS_STRING(magic), (size_t)PyBytes_GET_SIZE(magic)) != 0
        || (unsigned char)record[TIME_TAG_AT] != UINT64) {
        return 0;
    }
    const char *end = record + parts->embedded;
    parts->stamp = big_endian(record + TIME_AT, WORD_SIZE);
    const char *at = find_key(record + KEY_AT, end, parts);
    return at != NULL && end - at >= 2 && (unsigned char)at[0] == NIL && (unsigned char)at[1] == NIL
           && find_body(at + 2, end, parts)
           && big_endian(sizes + BODY_SIZE_AT, 4) == (unsigned long long)parts->size;
}

/* Whether the checksum holds of a journal publish record: `word`, and `rest` bytes from its message
 * id on; -1: raised. */
int
has_its_sum(const char *payload, unsigned long long word, Py_ssize_t rest)
{
    PyObject *copy = PyBytes_FromStringAndSize(NULL, WORD_SIZE + rest);
    if (copy == NULL) {
        return -1;
    }
    char *start = PyBytes_AS_STRING(copy);
    put_big_endian(start, word, WORD_SIZE);
    memcpy(start + WORD_SIZE, payload, (size_t)rest);
    memset(start + check_at, 0, CHECK_SIZE);
    PyObject *sum = called(digest, copy);
    Py_DECREF(copy);
    if (sum == NULL) {
        return -1;
    }
    int holds = PyBytes_CheckExact(sum) && PyBytes_GET_SIZE(sum) == CHECK_SIZE
                && memcmp(PyBytes_AS_STRING(sum), payload + check_at - WORD_SIZE, CHECK_SIZE) == 0;
    Py_DECREF(sum);
    return holds;
}

/* A new object of a class with slots; its attributes are the caller's to set. */
static PyObject *
made(int type)
{
    return type_of[type]->tp_alloc(type_of[type], 0);
}

static PyObject *
make_message(PyObject *body, PyObject *key, PyObject *stamp)
{
    PyObject *message = made(MESSAGE);
    if (message == NULL) {
        return NULL;
    }
    Py_INCREF(body);
    SLOT(message, MESSAGE, body) = body;
    Py_INCREF(key);
    SLOT(message, MESSAGE, key) = key;
    Py_INCREF(stamp);
    SLOT(message, MESSAGE, timestamp) = stamp;
    if ((SLOT(message, MESSAGE, headers) = PyDict_New()) == NULL
        || (SLOT(message, MESSAGE, properties) = PyDict_New()) == NULL) {
        Py_DECREF(message);
        return NULL;
    }
    return message;
}

static PyObject *
make_entry(const char *msg_id, const Parts *parts, PyObject *body, PyObject *key, PyObject *stamp)
{
    PyObject *entry = made(ENTRY);
    if (entry == NULL) {
        return NULL;
    }
    Py_INCREF(Py_False);
    SLOT(entry, ENTRY, stored) = Py_False;
    Py_INCREF(Py_False);
    SLOT(entry, ENTRY, corrected) = Py_False;
    Py_INCREF(no_damage);
    SLOT(entry, ENTRY, damage) = no_damage;
    Py_INCREF(kind_of_record);
    SLOT(entry, ENTRY, kind) = kind_of_record;
    if ((SLOT(entry, ENTRY, msg_id) = PyBytes_FromStringAndSize(msg_id, ID_SIZE)) == NULL
        || (SLOT(entry, ENTRY, expiry) = PyLong_FromUnsignedLongLong(parts->expiry)) == NULL
        || (SLOT(entry, ENTRY, size) = PyLong_FromSsize_t(parts->size)) == NULL
        || (SLOT(entry, ENTRY, message) = make_message(body, key, stamp)) == NULL) {
        Py_DECREF(entry);
        return NULL;
    }
    return entry;
}

/* The body, and the timestamp of a plain message or the entry of another; None: the key is no text.
 */
static PyObject *
make_result(const char *msg_id, const Parts *parts)
{
    PyObject *body = NULL, *extra = NULL, *key = Py_None, *result = NULL;
    PyObject *stamp = PyLong_FromUnsignedLongLong(parts->stamp);
    Py_INCREF(key);
    if (parts->key != NULL) {
        Py_SETREF(key, PyUnicode_DecodeUTF8(parts->key, parts->key_size, NULL));
        if (key == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            Py_XDECREF(stamp);
            Py_RETURN_NONE;
        }
    }
    if (stamp != NULL && key != NULL) {
        body = PyBytes_FromStringAndSize(parts->body, parts->size);
    }
    if (body != NULL) {
        if (key == Py_None && parts->expiry == 0) {
            Py_INCREF(stamp);
            extra = stamp;
        } else {
            extra = make_entry(msg_id, parts, body, key, stamp);
        }
    }
    if (extra != NULL) {
        result = PyTuple_Pack(2, body, extra);
    }
    Py_XDECREF(extra);
    Py_XDECREF(body);
    Py_XDECREF(key);
    Py_XDECREF(stamp);
    return result;
}

PyObject *
read_sound(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4) {
        return PyErr_Format(PyExc_TypeError, "read_sound takes 4 arguments, not %zd", nargs);
    }
    long long payload = PyLong_AsLongLong(args[1]);
    unsigned long long word = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[2]);
    Py_buffer data;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    Parts parts;
    PyObject *result = NULL;
    int sound = find_parts(data.buf, data.len, payload, &parts);
    const char *msg_id = (const char *)data.buf + payload;
    if (sound && args[3] != Py_True) {
        sound = has_its_sum(msg_id, word, ID_SIZE + SIZES_SIZE + parts.embedded);
    }
    if (sound == 0) {
        Py_INCREF(Py_None);
        result = Py_None;
    } else if (sound > 0) {
        result = make_result(msg_id, &parts);
    }
    PyBuffer_Release(&data);
    return result;
}
