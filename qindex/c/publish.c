/* Queue.publish of a plain message; qindex/publisher.py has the method that it stands for. */

#include "shared.h"

/* The time in nanoseconds, of the clock that the method in Python has. */
static PyObject *
now(void)
{
    PyObject *clock = PyDict_GetItemWithError(PyFunction_GET_GLOBALS(slow_publish), s_time_ns);
    if (clock == NULL) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_NameError, "time_ns");
    }
    PyObject *stamp = PyObject_CallNoArgs(clock);
    if (stamp != NULL && !PyLong_CheckExact(stamp)) {
        Py_SETREF(stamp, PyErr_Format(PyExc_TypeError, "a time is an int"));
    }
    return stamp;
}

/* The publish record of a plain message, without its checksum: qindex/plain.py has its layout. */
static PyObject *
make_record(PyObject *self, long long seq, PyObject *body, PyObject *stamp)
{
    Py_ssize_t size = PyBytes_GET_SIZE(body);
    PyObject *id_high = SLOT(self, QUEUE, _id_high);
    if (id_high == NULL || !PyLong_CheckExact(id_high)) {
        PyErr_SetString(PyExc_TypeError, "the first half of a message id is an int");
        return NULL;
    }
    unsigned long long id = PyLong_AsUnsignedLongLongMask(id_high);
    PyObject *parts = parts_of(size);
    PyObject *first, *second, *record = NULL;
    if (parts == NULL || !PyArg_ParseTuple(parts, "SS", &first, &second)) {
        goto failed;
    }
    Py_ssize_t first_size = PyBytes_GET_SIZE(first), second_size = PyBytes_GET_SIZE(second);
    record =
        PyBytes_FromStringAndSize(NULL, HEAD_SIZE + first_size + WORD_SIZE + second_size + size);
    if (record == NULL) {
        goto failed;
    }
    char *start = PyBytes_AS_STRING(record), *at = start + HEAD_SIZE;
    put_big_endian(start, seq, WORD_SIZE);
    put_big_endian(start + WORD_SIZE, id, WORD_SIZE);
    put_big_endian(start + 2 * WORD_SIZE, seq, WORD_SIZE);
    memcpy(at, PyBytes_AS_STRING(first), first_size);
    at += first_size;
    put_big_endian(at, number_of(stamp), WORD_SIZE);
    at += WORD_SIZE;
    memcpy(at, PyBytes_AS_STRING(second), second_size);
    memcpy(at + second_size, PyBytes_AS_STRING(body), size);
    Py_DECREF(parts);
    return record;
failed:
    Py_XDECREF(parts);
    return NULL;
}

/* Put its checksum into a record that nobody else has, and zeros in place of its start, which is
 * given: it is stored last (journal/journal.py). */
static PyObject *
seal_rest(PyObject *record)
{
    PyObject *sum = called(digest, record), *start = NULL;
    if (sum != NULL && PyBytes_CheckExact(sum) && PyBytes_GET_SIZE(sum) == CHECK_SIZE) {
        char *bytes = PyBytes_AS_STRING(record);
        memcpy(bytes + check_at, PyBytes_AS_STRING(sum), CHECK_SIZE);
        start = PyBytes_FromStringAndSize(bytes, START_SIZE);
        memset(bytes, 0, START_SIZE);
    } else if (sum != NULL) {
        PyErr_SetString(PyExc_TypeError, "a checksum is 8 bytes");
    }
    Py_XDECREF(sum);
    return start;
}

/* Store the start of an append at `offset` of the map: it counts from now. */
static int
store_start(PyObject *map, PyObject *offset, PyObject *start)
{
    long long at = number_of(offset);
    if (at < 0) {
        PyErr_SetString(PyExc_TypeError, "an offset is an int");
        return -1;
    }
    PyObject *end = PyLong_FromLongLong(at + START_SIZE);
    PyObject *place = end == NULL ? NULL : PySlice_New(offset, end, NULL);
    int failed = place == NULL || PyObject_SetItem(map, place, start) < 0;
    Py_XDECREF(place);
    Py_XDECREF(end);
    return failed ? -1 : 0;
}

/* Let a consumer that keeps up have the message at once, and not from the journal. */
static int
add_to_window(PyObject *self, PyObject *tail, long long seq, PyObject *seq_id, PyObject *next,
              PyObject *body, PyObject *stamp)
{
    PyObject *window = SLOT(self, QUEUE, _window);
    if (!IS(window, WINDOW) || SLOT(window, WINDOW, segment) != tail) {
        return 0;
    }
    PyObject *seqs = SLOT(window, WINDOW, seqs), *states = SLOT(window, WINDOW, states);
    PyObject *bodies = SLOT(window, WINDOW, bodies), *extras = SLOT(window, WINDOW, extras);
    PyObject *delivers = SLOT(window, WINDOW, delivers);
    if (seqs == NULL || !PyList_CheckExact(seqs) || states == NULL
        || !PyByteArray_CheckExact(states) || bodies == NULL || extras == NULL || delivers == NULL
        || PyList_GET_SIZE(seqs) >= number_of(SLOT(window, WINDOW, most))) {
        return 0;
    }
    char word[WORD_SIZE];
    put_big_endian(word, deliver_bits | seq, WORD_SIZE);
    PyObject *deliver = PyBytes_FromStringAndSize(word, WORD_SIZE);
    int failed = deliver == NULL || PyList_Append(seqs, seq_id) < 0
                 || PyList_Append(bodies, body) < 0 || PyList_Append(extras, stamp) < 0
                 || PyByteArray_Resize(states, PyByteArray_GET_SIZE(states) + 1) < 0;
    if (!failed) {
        PyByteArray_AS_STRING(states)[PyByteArray_GET_SIZE(states) - 1] = (char)published;
        failed = PyList_Append(delivers, deliver) < 0;
    }
    Py_XDECREF(deliver);
    if (failed) {
        return -1;
    }
    Py_INCREF(next);
    set_slot(&SLOT(self, QUEUE, _next_fetch), next);
    return 0;
}

/* Publish with the lock held; `tick`: the method that is called once in a while. 1: done, 0:
 * nothing has changed, -1: raised, and set right. */
static int
publish_held(PyObject *self, PyObject *body, PyObject *tick, PyObject **result)
{
    PyObject *index = SLOT(self, QUEUE, _index);
    if (index == NULL || !IS(index, INDEX)) {
        return 0;
    }
    PyObject *seq_id = SLOT(index, INDEX, next_seq), *tail = SLOT(index, INDEX, tail);
    PyObject *journal = SLOT(index, INDEX, journal), *positions = SLOT(index, INDEX, positions);
    long long seq = number_of(seq_id), mask = number_of(SLOT(self, QUEUE, _check_mask));
    if (seq < 0 || mask < 0 || seq >= number_of(SLOT(index, INDEX, tail_end)) || !IS(tail, SEGMENT)
        || state_of(tail, seq) == NULL || !takes_writes(journal) || positions == NULL) {
        return 0;
    }
    Py_INCREF(index);
    Py_INCREF(seq_id);
    Py_INCREF(tail);
    Py_INCREF(journal);
    Py_INCREF(positions);
    PyObject *next = PyLong_FromLongLong(seq + 1), *stamp = now();
    PyObject *record = NULL, *start = NULL, *offset = NULL, *done = NULL;
    int outcome = -1;
    if (next == NULL || stamp == NULL || (record = make_record(self, seq, body, stamp)) == NULL
        || (start = seal_rest(record)) == NULL) {
        goto end;
    }
    offset = called(SLOT(journal, JOURNAL, tell), NULL);
    if (offset == NULL) {
        goto end;
    }
    done = called(SLOT(journal, JOURNAL, write), record);
    if (done == NULL && PyErr_ExceptionMatches(PyExc_ValueError)) {
        /* The map is full. */
        PyErr_Clear();
        outcome = 0;
        goto end;
    }
    char *state;
    PyObject *append[] = {positions, offset};
    if (done == NULL || store_start(SLOT(journal, JOURNAL, map), offset, start) < 0) {
        goto failed;
    }
    Py_DECREF(done);
    done = PyObject_VectorcallMethod(s_append, append, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (done == NULL) {
        goto failed;
    }
    state = state_of(tail, seq);
    if (state == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the tail was unloaded while it was published to");
        goto failed;
    }
    *state = (char)published;
    Py_INCREF(next);
    set_slot(&SLOT(index, INDEX, next_seq), next);
    if (seq == number_of(SLOT(self, QUEUE, _next_fetch))
        && add_to_window(self, tail, seq, seq_id, next, body, stamp) < 0) {
        goto failed;
    }
    if (number_of(SLOT(self, QUEUE, _waiting)) != 0
        && told(SLOT(self, QUEUE, _arrived), s_notify) < 0) {
        goto failed;
    }
    if (!(seq & mask) && told(self, tick) < 0) {
        goto failed;
    }
    Py_INCREF(seq_id);
    *result = seq_id;
    outcome = 1;
    goto end;
failed:
    clean_up(set_right, "(OOO)", self, seq_id, offset);
end:
    Py_XDECREF(done);
    Py_XDECREF(offset);
    Py_XDECREF(start);
    Py_XDECREF(record);
    Py_XDECREF(next);
    Py_XDECREF(stamp);
    Py_DECREF(positions);
    Py_DECREF(journal);
    Py_DECREF(tail);
    Py_DECREF(seq_id);
    Py_DECREF(index);
    return outcome;
}

/* Whether each keyword has its default: callers that pass all of theirs on are as quick. */
static int
are_defaults(PyObject *const *values, PyObject *kwnames)
{
    Py_ssize_t count = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, number), *value = values[number];
        int is_default = name == s_persistent ? value == Py_True
                         : name == s_confirm  ? value == Py_False
                         : name == s_key || name == s_headers || name == s_properties
                                 || name == s_ttl || name == s_timeout
                             ? value == Py_None
                             : 0;
        if (!is_default) {
            return 0;
        }
    }
    return 1;
}

/* Publish a plain message; NULL without an exception: it is for the method in Python. */
static PyObject *
publish_plain(PyObject *self, PyObject *body, PyObject *tick)
{
    if (PyBytes_GET_SIZE(body) > number_of(SLOT(self, QUEUE, _most_plain))) {
        return NULL;
    }
    PyObject *lock = SLOT(self, QUEUE, _lock), *result = NULL;
    Py_XINCREF(lock);
    int outcome = take_lock(lock);
    if (outcome == 1) {
        outcome = synced(self, lock_released(lock, publish_held(self, body, tick, &result)));
    }
    Py_XDECREF(lock);
    if (outcome < 0) {
        Py_CLEAR(result);
    }
    return result;
}

PyObject *
publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *result = NULL;
    if (nargs == 1 && PyBytes_CheckExact(args[0]) && are_defaults(args + 1, kwnames)) {
        result = publish_plain(self, args[0], s__tick);
    }
    return result != NULL || PyErr_Occurred() ? result
                                              : leave_to(slow_publish, self, args, nargs, kwnames);
}

PyObject *
publish_on_loop(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *result = NULL;
    if (nargs == 1 && kwnames == NULL && PyBytes_CheckExact(args[0])) {
        result = publish_plain(self, args[0], s__tick_on_loop);
    }
    return result != NULL || PyErr_Occurred()
               ? result
               : leave_to(slow_publish_on_loop, self, args, nargs, kwnames);
}
