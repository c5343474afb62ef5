/* Reading ahead: plain messages that stand one behind the other in a journal or segment. */

#include "shared.h"

#define OFFSET_SIZE ((Py_ssize_t)sizeof(int64_t))

/* The constant parts of the plain records of one size. */
typedef struct {
    Py_ssize_t size;
    PyObject *parts;
    const char *first, *second;
    Py_ssize_t first_size, second_size;
} Shape;

static int
turn_to_size(Shape *shape, Py_ssize_t size)
{
    if (shape->parts != NULL && shape->size == size) {
        return 0;
    }
    Py_XSETREF(shape->parts, parts_of(size));
    PyObject *first, *second;
    if (shape->parts == NULL || !PyArg_ParseTuple(shape->parts, "SS", &first, &second)) {
        return -1;
    }
    shape->size = size;
    shape->first = PyBytes_AS_STRING(first);
    shape->first_size = PyBytes_GET_SIZE(first);
    shape->second = PyBytes_AS_STRING(second);
    shape->second_size = PyBytes_GET_SIZE(second);
    return 0;
}

/* Append the message whose id stands at `payload`, if it is plain and sound: 1; 0: it is not. */
static int
read_one(const char *data, Py_ssize_t length, Py_ssize_t payload, unsigned long long seq,
         int in_journal, Shape *shape, PyObject *bodies, PyObject *stamps, PyObject *delivers)
{
    const Py_ssize_t first_at = payload + ID_SIZE, sum_at = (Py_ssize_t)check_at - HEAD_SIZE;
    if (payload < (in_journal ? WORD_SIZE : 0) || first_at + SIZES_SIZE > length) {
        return 0;
    }
    Py_ssize_t size = (Py_ssize_t)big_endian(data + first_at + BODY_SIZE_AT, 4);
    if (size > length - first_at) {
        return 0;
    }
    if (turn_to_size(shape, size) < 0) {
        return -1;
    }
    Py_ssize_t stamp_at = first_at + shape->first_size, second_at = stamp_at + WORD_SIZE;
    Py_ssize_t body_at = second_at + shape->second_size, behind_sum = sum_at + CHECK_SIZE;
    if (body_at + size > length || memcmp(data + first_at, shape->first, sum_at) != 0
        || memcmp(data + first_at + behind_sum, shape->first + behind_sum,
                  shape->first_size - behind_sum)
               != 0
        || memcmp(data + second_at, shape->second, shape->second_size) != 0) {
        return 0;
    }
    if (in_journal) {
        int sound = big_endian(data + payload - WORD_SIZE, WORD_SIZE) == seq
                        ? has_its_sum(data + payload, seq, body_at + size - payload)
                        : 0;
        if (sound <= 0) {
            return sound;
        }
    }
    char word[WORD_SIZE];
    put_big_endian(word, deliver_bits | seq, WORD_SIZE);
    PyObject *body = PyBytes_FromStringAndSize(data + body_at, size);
    PyObject *stamp = PyLong_FromUnsignedLongLong(big_endian(data + stamp_at, WORD_SIZE));
    PyObject *deliver = PyBytes_FromStringAndSize(word, WORD_SIZE);
    int failed = body == NULL || stamp == NULL || deliver == NULL || PyList_Append(bodies, body) < 0
                 || PyList_Append(stamps, stamp) < 0 || PyList_Append(delivers, deliver) < 0;
    Py_XDECREF(body);
    Py_XDECREF(stamp);
    Py_XDECREF(deliver);
    return failed ? -1 : 1;
}

PyObject *
read_run(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data, offsets;
    Py_ssize_t start, count, most_bytes;
    unsigned long long seq;
    int in_journal;
    if (!PyArg_ParseTuple(args, "y*y*nnKnp:read_run", &data, &offsets, &start, &count, &seq,
                          &most_bytes, &in_journal)) {
        return NULL;
    }
    PyObject *bodies = PyList_New(0), *stamps = PyList_New(0), *delivers = PyList_New(0),
             *found = NULL;
    Shape shape = {.parts = NULL};
    int more = bodies != NULL && stamps != NULL && delivers != NULL ? 1 : -1;
    if (start < 0 || count < 0 || offsets.len % OFFSET_SIZE
        || count > offsets.len / OFFSET_SIZE - start) {
        PyErr_SetString(PyExc_ValueError, "offsets of so many entries are needed");
        more = -1;
    }
    Py_ssize_t payload_at = in_journal ? WORD_SIZE : (Py_ssize_t)step_size, bytes = 0;
    for (Py_ssize_t number = 0; more > 0 && number < count; number++) {
        int64_t place;
        memcpy(&place, (const char *)offsets.buf + (start + number) * OFFSET_SIZE, OFFSET_SIZE);
        if (place < 0 || place > data.len) {
            break;
        }
        more = read_one(data.buf, data.len, (Py_ssize_t)place + payload_at, seq + number,
                        in_journal, &shape, bodies, stamps, delivers);
        bytes += more > 0 ? shape.size + HEAD_SIZE : 0;
        if (bytes >= most_bytes) {
            break;
        }
    }
    if (more >= 0) {
        found = PyTuple_Pack(3, bodies, stamps, delivers);
    }
    Py_XDECREF(shape.parts);
    Py_XDECREF(bodies);
    Py_XDECREF(stamps);
    Py_XDECREF(delivers);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&data);
    return found;
}
