/* Store.put of a usual message; rocketstore/putter.py has the method that it stands for. */

#include "shared.h"

/* Properties in the order in which a record has them: rocketstore.properties.encode_usual. */
enum { KEYS, UNIQUE_KEY, TAGS, TEXTS };
static const char *const leads[TEXTS] = {"KEYS\x01", "UNIQ_KEY\x01", "TAGS\x01"};
#define PAIR_END '\x02'

/* Of a record's head and of a PutResult. */
#define START_SIZE 8 /* of a route */
#define RECORD_START_SIZE 8
#define FIELDS 6

/* What a caller gives; texts that there are not are NULL. */
typedef struct {
    PyObject *topic, *body, *queue_id;
    PyObject *texts[TEXTS];
    Py_ssize_t properties_size;
} Message;

/* Note a property; 0: it is not plain text. */
static int
note_text(Message *message, int which, PyObject *text)
{
    if (text == Py_None) {
        return 1;
    }
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text)) {
        return 0;
    }
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    const void *start = PyUnicode_DATA(text);
    if (memchr(start, PAIR_END, size) != NULL || memchr(start, 0, size) != NULL) {
        return 0;
    }
    if (size > 0) {
        message->properties_size += (message->properties_size > 0) + strlen(leads[which]) + size;
        message->texts[which] = text;
    }
    return 1;
}

/* Read the arguments; 0: they are not those of a usual message. */
static int
read_message(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Message *message)
{
    if (nargs != 2 || !PyUnicode_CheckExact(args[0]) || !PyBytes_CheckExact(args[1])) {
        return 0;
    }
    *message = (Message){.topic = args[0], .body = args[1], .queue_id = zero};
    Py_ssize_t count = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, number), *value = args[nargs + number];
        if (name == s_queue_id) {
            message->queue_id = value;
        } else if (name != s_keys && name != s_unique_key && name != s_tags) {
            return 0;
        } else if (!note_text(message,
                              name == s_keys         ? KEYS
                              : name == s_unique_key ? UNIQUE_KEY
                                                     : TAGS,
                              value)) {
            return 0;
        }
    }
    return message->properties_size <= (Py_ssize_t)properties_max;
}

/* The route of a queue that was put to before, a new reference; NULL: of none, or raised. */
static PyObject *
route_of(PyObject *self, const Message *message)
{
    long long queue_id = number_of(message->queue_id);
    PyObject *route = SLOT(self, STORE, _last_route), *routes = SLOT(self, STORE, _routes);
    if (queue_id < 0 || route == NULL || !IS(route, ROUTE) || routes == NULL
        || !PyDict_CheckExact(routes)) {
        return NULL;
    }
    if (SLOT(route, ROUTE, topic) == message->topic
        && number_of(SLOT(route, ROUTE, queue_id)) == queue_id) {
        return Py_NewRef(route);
    }
    PyObject *key = PyTuple_Pack(2, message->topic, message->queue_id);
    route = key == NULL ? NULL : PyDict_GetItemWithError(routes, key);
    if (route != NULL && IS(route, ROUTE)) {
        Py_INCREF(route);
        set_slot(&SLOT(self, STORE, _last_route), Py_NewRef(route));
    } else {
        route = NULL;
    }
    Py_XDECREF(key);
    return route;
}

/* A record without what is known only with the lock held; NULL: raised, or `field` is no topic. */
static PyObject *
make_record(const Message *message, PyObject *field)
{
    if (field == NULL || !PyBytes_CheckExact(field)) {
        return NULL;
    }
    Py_ssize_t length = PyBytes_GET_SIZE(message->body), field_size = PyBytes_GET_SIZE(field);
    PyObject *record = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)head_size + length + field_size
                                                           + 2 + message->properties_size);
    if (record == NULL) {
        return NULL;
    }
    char *at = PyBytes_AS_STRING(record) + head_size;
    memcpy(at, PyBytes_AS_STRING(message->body), length);
    at += length;
    memcpy(at, PyBytes_AS_STRING(field), field_size);
    at += field_size;
    put_big_endian(at, message->properties_size, 2);
    at += 2;
    int first = 1;
    for (int which = 0; which < TEXTS; which++) {
        PyObject *text = message->texts[which];
        if (text != NULL) {
            if (!first) {
                *at++ = PAIR_END;
            }
            first = 0;
            memcpy(at, leads[which], strlen(leads[which]));
            at += strlen(leads[which]);
            memcpy(at, PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text));
            at += PyUnicode_GET_LENGTH(text);
        }
    }
    return record;
}

/* The first bytes of a record, as rocketstore.put_path.pack_head makes them, without its start:
 * that is stored last (rocketstore/commitlog.py). */
static void
fill_head(char *head, unsigned long long crc, const char *start, unsigned long long ordinal,
          unsigned long long offset, const char *stamp, Py_ssize_t length)
{
    memset(head, 0, RECORD_START_SIZE);
    put_big_endian(head + 8, crc, 4);
    memcpy(head + 12, start, START_SIZE);
    put_big_endian(head + 20, ordinal, 8);
    put_big_endian(head + 28, offset, 8);
    memcpy(head + 36, stamp, stamp_size);
    put_big_endian(head + 36 + stamp_size, length, 4);
}

/* Have the millisecond that it is begun: its stamp made. */
static int
tell_time(PyObject *self)
{
    PyObject *ticks = called(SLOT(self, STORE, _ticks), NULL), *done = NULL;
    PyObject *next = Py_XNewRef(SLOT(self, STORE, _next_tick));
    int passed = ticks == NULL ? -1 : PyObject_RichCompareBool(ticks, next, Py_GE);
    Py_XDECREF(next);
    if (passed > 0) {
        PyObject *begin[] = {self, ticks};
        done = PyObject_VectorcallMethod(s__begin_moment, begin, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                         NULL);
        Py_XDECREF(done);
    }
    Py_XDECREF(ticks);
    return passed < 0 || (passed > 0 && done == NULL) ? -1 : 0;
}

/* Whether the store is open, and nothing is refused. */
static int
takes_writes(PyObject *self)
{
    PyObject *log = SLOT(self, STORE, _commitlog), *pending = SLOT(self, STORE, _pending);
    PyObject *poison = SLOT(self, STORE, _poison);
    return log != NULL && IS(log, COMMIT_LOG) && pending != NULL && IS(pending, PENDING)
           && poison != NULL && IS(poison, POISON) && SLOT(poison, POISON, reason) == Py_None
           && SLOT(self, STORE, _refusal) == Py_None && SLOT(self, STORE, _full) == Py_False
           && SLOT(self, STORE, _ticks) != NULL && SLOT(self, STORE, _next_tick) != NULL;
}

static int
has_room(PyObject *self, PyObject *log, Py_ssize_t size)
{
    long long at = number_of(SLOT(log, COMMIT_LOG, at));
    return at >= 0 && at + size <= number_of(SLOT(log, COMMIT_LOG, room))
           && size <= number_of(SLOT(self, STORE, _max_size));
}

/* Note that a message waits to be dispatched: rocketstore.pending.Pending.note. */
static int
note_pending(PyObject *pending, PyObject *route, PyObject *offset)
{
    PyObject *offsets = SLOT(pending, PENDING, offsets);
    if (SLOT(pending, PENDING, route) != route) {
        set_slot(&SLOT(pending, PENDING, route), Py_NewRef(route));
        PyObject *queues = SLOT(pending, PENDING, queues);
        if (PyDict_SetItem(queues, offset, SLOT(route, ROUTE, key)) < 0) {
            return -1;
        }
    }
    if (PyList_Append(offsets, offset) < 0) {
        return -1;
    }
    return PyList_GET_SIZE(offsets) < (Py_ssize_t)pending_max ? 0
                                                              : told(pending, s_dispatch_quietly);
}

/* What a put works with, references of its own. */
typedef struct {
    /* As they are when it begins. */
    PyObject *log, *pending, *view, *at, *ordinal, *start, *stamp;
    /* Made for it. */
    PyObject *offset, *end, *next_ordinal, *place, *record_start, *start_place, *result;
} Things;

static int
is_bytes(PyObject *object, unsigned long long size)
{
    return object != NULL && PyBytes_CheckExact(object)
           && (unsigned long long)PyBytes_GET_SIZE(object) == size;
}

/* Take what there is; 0: something is not as it usually is. */
static int
take_things(PyObject *self, PyObject *route, Py_ssize_t size, Things *things)
{
    things->log = Py_NewRef(SLOT(self, STORE, _commitlog));
    things->pending = Py_NewRef(SLOT(self, STORE, _pending));
    things->view = Py_XNewRef(SLOT(things->log, COMMIT_LOG, view));
    things->at = Py_XNewRef(SLOT(things->log, COMMIT_LOG, at));
    things->ordinal = Py_XNewRef(SLOT(route, ROUTE, ordinal));
    things->start = Py_XNewRef(SLOT(route, ROUTE, start));
    things->stamp = Py_XNewRef(SLOT(self, STORE, _stamp));
    return has_room(self, things->log, size) && things->view != NULL
           && number_of(SLOT(things->log, COMMIT_LOG, base)) >= 0 && number_of(things->ordinal) >= 0
           && is_bytes(things->start, START_SIZE) && is_bytes(things->stamp, stamp_size);
}

/* Make the rest, before the first step; -1: raised. */
static int
make_things(PyObject *self, PyObject *queue_id, Py_ssize_t size, Things *things)
{
    long long at = number_of(things->at);
    things->offset = PyLong_FromLongLong(number_of(SLOT(things->log, COMMIT_LOG, base)) + at);
    things->end = PyLong_FromLongLong(at + size);
    things->next_ordinal = PyLong_FromLongLong(number_of(things->ordinal) + 1);
    if (things->offset == NULL || things->end == NULL || things->next_ordinal == NULL
        || (things->place = PySlice_New(things->at, things->end, NULL)) == NULL) {
        return -1;
    }
    char start[RECORD_START_SIZE];
    put_big_endian(start, size, 4);
    put_big_endian(start + 4, magic, 4);
    things->record_start = PyBytes_FromStringAndSize(start, RECORD_START_SIZE);
    PyObject *start_end = PyLong_FromLongLong(at + RECORD_START_SIZE);
    things->start_place = start_end == NULL ? NULL : PySlice_New(things->at, start_end, NULL);
    Py_XDECREF(start_end);
    if (things->record_start == NULL || things->start_place == NULL) {
        return -1;
    }
    PyTypeObject *type = (PyTypeObject *)result_type;
    PyObject *size_object = PyLong_FromSsize_t(size);
    if (size_object == NULL || (things->result = type->tp_alloc(type, FIELDS)) == NULL) {
        Py_XDECREF(size_object);
        return -1;
    }
    /* Looked at after the last object is made, since a finalizer may change them. */
    PyObject *now = SLOT(self, STORE, _last_time), *host = SLOT(self, STORE, _store_host);
    PyObject *fields[] = {things->offset, size_object, queue_id, things->ordinal, now, host};
    for (int number = 0; number < FIELDS; number++) {
        PyTuple_SET_ITEM(things->result, number, Py_XNewRef(fields[number]));
    }
    Py_DECREF(size_object);
    return 0;
}

/* Store a record, which has no start yet, and then that. */
static int
store_record(PyObject *record, Things *things)
{
    if (PyObject_SetItem(things->view, things->place, record) < 0) {
        return -1;
    }
    return PyObject_SetItem(things->view, things->start_place, things->record_start);
}

/* Let everybody see the record that has been written. */
static int
take_steps(PyObject *route, Things *things)
{
    set_slot(&SLOT(things->log, COMMIT_LOG, at), Py_NewRef(things->end));
    set_slot(&SLOT(route, ROUTE, ordinal), Py_NewRef(things->next_ordinal));
    return note_pending(things->pending, route, things->offset);
}

/* Put with the lock held; 1: done, 0: nothing has changed, -1: raised. */
static int
put_held(PyObject *self, const Message *message, PyObject *route, PyObject *record,
         unsigned long long crc, PyObject **result)
{
    Py_ssize_t size = PyBytes_GET_SIZE(record);
    if (!takes_writes(self) || !has_room(self, SLOT(self, STORE, _commitlog), size)) {
        return 0;
    }
    if (tell_time(self) < 0) {
        return -1;
    }
    Things things = {NULL};
    int outcome = 0;
    if (take_things(self, route, size, &things)) {
        outcome = make_things(self, message->queue_id, size, &things);
        /* To make an object may run a finalizer, and that may put a message of its own. */
        if (outcome == 0 && SLOT(things.log, COMMIT_LOG, at) == things.at
            && SLOT(route, ROUTE, ordinal) == things.ordinal) {
            fill_head(PyBytes_AS_STRING(record), crc, PyBytes_AS_STRING(things.start),
                      number_of(things.ordinal), number_of(things.offset),
                      PyBytes_AS_STRING(things.stamp), PyBytes_GET_SIZE(message->body));
            outcome = store_record(record, &things) < 0 || take_steps(route, &things) < 0 ? -1 : 1;
        }
    }
    if (outcome == 1) {
        *result = Py_NewRef(things.result);
    }
    for (size_t number = 0; number < sizeof things / sizeof(PyObject *); number++) {
        Py_XDECREF(((PyObject **)&things)[number]);
    }
    return outcome;
}

/* As put_held, of a message whose record is made. */
static int
put_record(PyObject *self, const Message *message, PyObject *route, PyObject *record,
           PyObject **result)
{
    PyObject *sum = called(crc32, message->body);
    if (sum == NULL) {
        return -1;
    }
    unsigned long long crc = PyLong_AsUnsignedLongLongMask(sum) & CRC_BITS;
    Py_DECREF(sum);
    if (PyErr_Occurred()) {
        return -1;
    }
    PyObject *lock = Py_XNewRef(SLOT(self, STORE, _lock));
    int outcome = take_lock(lock);
    if (outcome == 1) {
        outcome = lock_released(lock, put_held(self, message, route, record, crc, result));
    }
    Py_XDECREF(lock);
    return outcome;
}

PyObject *
put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Message message;
    if (SLOT(self, STORE, _wide) == Py_False && read_message(args, nargs, kwnames, &message)) {
        PyObject *route = route_of(self, &message), *record = NULL, *result = NULL;
        int outcome = 0;
        if (route != NULL && (record = make_record(&message, SLOT(route, ROUTE, field))) != NULL) {
            outcome = put_record(self, &message, route, record, &result);
        }
        Py_XDECREF(record);
        Py_XDECREF(route);
        if (outcome == 1 && SLOT(self, STORE, _fsync) != Py_False
            && told(SLOT(self, STORE, _group), s_commit) < 0) {
            outcome = -1;
        }
        if (outcome == 1) {
            return result;
        }
        if (PyErr_Occurred()) {
            Py_XDECREF(result);
            return NULL;
        }
    }
    return leave_to(slow_put, self, args, nargs, kwnames);
}
