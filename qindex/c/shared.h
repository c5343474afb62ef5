/* What the files of qindex._compiled share; journal/c/objects.h says how it is done. */

#ifndef QINDEX_SHARED_H
#define QINDEX_SHARED_H

#include "../../journal/c/lock.h"
#include "../../journal/c/objects.h"

/* Types whose attributes are read, or set; the last of them are made before there are queues. */
enum { QUEUE, INDEX, JOURNAL, SEGMENT, WINDOW, DELIVERY, BATCH_DELIVERY, ENTRY, MESSAGE, TYPES };
extern PyTypeObject *type_of[TYPES];

/* clang-format off */
#define SLOTS(X) \
    X(QUEUE, _ack_segment) X(QUEUE, _arrived) X(QUEUE, _at) X(QUEUE, _check_mask) \
    X(QUEUE, _holding) X(QUEUE, _id_high) X(QUEUE, _index) X(QUEUE, _lock) \
    X(QUEUE, _most_plain) X(QUEUE, _nacked_at) X(QUEUE, _next_fetch) X(QUEUE, _returned) \
    X(QUEUE, _stored_out) X(QUEUE, _sync_each) X(QUEUE, _waiting) X(QUEUE, _watched) \
    X(QUEUE, _window) \
    X(INDEX, acks) X(INDEX, journal) X(INDEX, next_seq) X(INDEX, positions) X(INDEX, tail) \
    X(INDEX, tail_end) X(INDEX, taken) X(INDEX, transient) \
    X(JOURNAL, map) X(JOURNAL, tell) X(JOURNAL, write) \
    X(SEGMENT, base) X(SEGMENT, states) \
    X(WINDOW, bodies) X(WINDOW, delivers) X(WINDOW, extras) X(WINDOW, most) X(WINDOW, segment) \
    X(WINDOW, seqs) X(WINDOW, states) \
    X(DELIVERY, _extra) X(DELIVERY, _queue) X(DELIVERY, body) X(DELIVERY, redelivered) \
    X(DELIVERY, seq_id)
#define SLOTS_OF_RECORDS(X) \
    X(ENTRY, corrected) X(ENTRY, damage) X(ENTRY, expiry) X(ENTRY, kind) X(ENTRY, message) \
    X(ENTRY, msg_id) X(ENTRY, size) X(ENTRY, stored) \
    X(MESSAGE, body) X(MESSAGE, headers) X(MESSAGE, key) X(MESSAGE, properties) \
    X(MESSAGE, timestamp)
/* clang-format on */

SLOTS(DECLARE_SLOT)
SLOTS_OF_RECORDS(DECLARE_SLOT)

/* What Python's modules gave: functions, and numbers of the formats. */
extern PyObject *slow_publish, *slow_publish_on_loop, *slow_get, *slow_ack;
extern PyObject *set_right, *put_back, *count_anew, *store_error;
extern PyObject *plain_heads, *plain_parts, *digest, *magic, *kind_of_record, *no_damage;
extern unsigned long long published, out, acked, deliver_bits, ack_bits, check_at, step_size;

/* Names of methods and keywords. */
/* clang-format off */
#define NAMES(X) \
    X(append) X(confirm) X(_forget) X(_forget_stored) X(headers) X(key) X(lease) X(notify) \
    X(persistent) X(properties) X(_sync_each_journal) X(_tick) X(_tick_on_loop) X(time_ns) \
    X(timeout) X(ttl)
/* clang-format on */
NAMES(DECLARE_NAME)
extern PyObject *reserve_only; /* ("reserve",) */

/* Of the layout (qindex/plain.py): word and message id, then the first constant part, which starts
 * with expiry, size of the body and size of the record. */
#define WORD_SIZE 8
#define ID_SIZE 16
#define HEAD_SIZE (WORD_SIZE + ID_SIZE)
#define SIZES_SIZE 16
#define BODY_SIZE_AT 8
#define CHECK_SIZE 8

/* Bytes of an append that are stored last (journal/format.py). */
#define START_SIZE 16

/* The place of an entry's state in the map of its segment; NULL where there is none. */
static inline char *
state_of(PyObject *segment, long long seq)
{
    PyObject *states = SLOT(segment, SEGMENT, states);
    long long base = number_of(SLOT(segment, SEGMENT, base));
    if (states == NULL || base < 0 || !PyByteArray_CheckExact(states)) {
        return NULL;
    }
    long long rel = seq - base;
    return 0 <= rel && rel < PyByteArray_GET_SIZE(states) ? PyByteArray_AS_STRING(states) + rel
                                                          : NULL;
}

/* The constant parts of the records of plain messages with bodies of `size` bytes. */
static inline PyObject *
parts_of(Py_ssize_t size)
{
    if (size < PyTuple_GET_SIZE(plain_heads)) {
        PyObject *parts = PyTuple_GET_ITEM(plain_heads, size);
        Py_INCREF(parts);
        return parts;
    }
    return PyObject_CallFunction(plain_parts, "n", size);
}

/* calls.c */
int takes_writes(PyObject *journal);
int synced(PyObject *self, int outcome);

/* read_sound.c */
int has_its_sum(const char *payload, unsigned long long word, Py_ssize_t rest);

/* publish.c, get.c, ack.c, read_run.c, read_sound.c */
PyObject *publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *
publish_on_loop(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *get(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *ack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *read_run(PyObject *module, PyObject *args);
PyObject *read_sound(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
