/* Queue.get of a message that was read ahead with its entry; qindex/consumer.py has the method that
 * it stands for. */

#include "shared.h"

static int
reaches(PyObject *column, long long at)
{
    return column != NULL && PyList_CheckExact(column) && at < PyList_GET_SIZE(column);
}

/* Whether a message can be handed out as it is: qindex.entries.is_special says what can't. */
static int
is_ready(PyObject *extra)
{
    return PyLong_CheckExact(extra)
           || (IS(extra, ENTRY) && SLOT(extra, ENTRY, message) != Py_None
               && SLOT(extra, ENTRY, stored) == Py_False
               && SLOT(extra, ENTRY, corrected) == Py_False
               && number_of(SLOT(extra, ENTRY, expiry)) == 0);
}

/* Whether the window has a message to deliver, and nothing else is to be seen to. */
static int
has_ready(PyObject *self)
{
    PyObject *window = SLOT(self, QUEUE, _window), *returned = SLOT(self, QUEUE, _returned);
    long long at = number_of(SLOT(self, QUEUE, _at));
    if (window == NULL || !IS(window, WINDOW) || at < 0 || SLOT(self, QUEUE, _watched) != Py_False
        || returned == NULL || !PyList_CheckExact(returned) || PyList_GET_SIZE(returned) != 0) {
        return 0;
    }
    PyObject *extras = SLOT(window, WINDOW, extras);
    return reaches(SLOT(window, WINDOW, seqs), at) && reaches(SLOT(window, WINDOW, bodies), at)
           && reaches(SLOT(window, WINDOW, delivers), at) && reaches(extras, at)
           && is_ready(PyList_GET_ITEM(extras, at));
}

/* Deliver with the lock held, into `given`; 1: done, 0: nothing has changed, -1: raised, put back.
 */
static int
get_held(PyObject *self, PyObject *given)
{
    PyObject *index = SLOT(self, QUEUE, _index), *window = SLOT(self, QUEUE, _window);
    if (!has_ready(self) || index == NULL || !IS(index, INDEX)) {
        return 0;
    }
    Py_ssize_t at = (Py_ssize_t)number_of(SLOT(self, QUEUE, _at));
    PyObject *segment = SLOT(window, WINDOW, segment), *journal = SLOT(index, INDEX, journal);
    PyObject *seq_id = PyList_GET_ITEM(SLOT(window, WINDOW, seqs), at);
    PyObject *deliver = PyList_GET_ITEM(SLOT(window, WINDOW, delivers), at);
    long long taken = number_of(SLOT(index, INDEX, taken));
    char *state = IS(segment, SEGMENT) ? state_of(segment, number_of(seq_id)) : NULL;
    if (state == NULL || (unsigned char)*state != published || !takes_writes(journal)
        || taken < 0) {
        return 0;
    }
    PyObject *next_at = PyLong_FromSsize_t(at + 1), *next_taken = PyLong_FromLongLong(taken + 1);
    if (next_at == NULL || next_taken == NULL) {
        Py_XDECREF(next_at);
        Py_XDECREF(next_taken);
        return -1;
    }
    Py_INCREF(window);
    Py_INCREF(journal);
    Py_INCREF(deliver);
    PyObject *value;
#define GIVE(NAME, VALUE) (value = (VALUE), Py_INCREF(value), SLOT(given, DELIVERY, NAME) = value)
    GIVE(_queue, self);
    GIVE(seq_id, seq_id);
    GIVE(body, PyList_GET_ITEM(SLOT(window, WINDOW, bodies), at));
    GIVE(redelivered, Py_False);
    GIVE(_extra, PyList_GET_ITEM(SLOT(window, WINDOW, extras), at));
#undef GIVE
    /* Before the write: behind a call a signal's handler may raise, and what has been taken by then
     * can be told, and put back. */
    *state = (char)out;
    set_slot(&SLOT(self, QUEUE, _at), next_at);
    set_slot(&SLOT(index, INDEX, taken), next_taken);
    PyObject *done = called(SLOT(journal, JOURNAL, write), deliver);
    if (done == NULL && PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        PyObject *append[] = {journal, deliver, Py_True};
        done = PyObject_VectorcallMethod(s_append, append, 2, reserve_only);
    }
    if (done == NULL) {
        clean_up(put_back, "(OOnO)", self, window, at, Py_True);
    }
    Py_XDECREF(done);
    Py_DECREF(deliver);
    Py_DECREF(journal);
    Py_DECREF(window);
    return done == NULL ? -1 : 1;
}

/* Whether the keywords ask for nothing special: a timeout matters only where there is nothing. */
static int
is_usual_get(PyObject *const *values, Py_ssize_t nargs, PyObject *kwnames)
{
    Py_ssize_t count = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, number);
        if (!(name == s_timeout && nargs == 0) && !(name == s_lease && values[number] == Py_None)) {
            return 0;
        }
    }
    return 1;
}

PyObject *
get(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs <= 1 && is_usual_get(args + nargs, nargs, kwnames) && has_ready(self)) {
        PyTypeObject *type = type_of[DELIVERY];
        PyObject *given = type->tp_alloc(type, 0);
        if (given == NULL) {
            return NULL;
        }
        PyObject *lock = SLOT(self, QUEUE, _lock);
        Py_XINCREF(lock);
        int outcome = take_lock(lock);
        if (outcome == 1) {
            outcome = lock_released(lock, get_held(self, given));
        }
        Py_XDECREF(lock);
        if (outcome == 1) {
            return given;
        }
        Py_DECREF(given);
        if (outcome < 0) {
            return NULL;
        }
    }
    return leave_to(slow_get, self, args, nargs, kwnames);
}
