/* Queue.ack of a delivery of which nothing is noted; qindex/acker.py has the method that it stands
 * for. */

#include "shared.h"

/* Whether the ack of an entry has nothing to see to but the entry, and its message in the message
 * store. */
static int
has_nothing_noted(PyObject *self, PyObject *index)
{
    PyObject *transient = SLOT(index, INDEX, transient), *nacked = SLOT(self, QUEUE, _nacked_at);
    return PyAnySet_CheckExact(transient) && PySet_GET_SIZE(transient) == 0
           && PyDict_CheckExact(nacked) && PyDict_GET_SIZE(nacked) == 0
           && PyDict_CheckExact(SLOT(self, QUEUE, _stored_out))
           && number_of(SLOT(self, QUEUE, _holding)) == 0;
}

/* Acknowledge with the lock held; 1: done, 0: nothing has changed, -1: raised. */
static int
ack_held(PyObject *self, PyObject *delivery)
{
    PyObject *index = SLOT(self, QUEUE, _index), *segment = SLOT(self, QUEUE, _ack_segment);
    if (SLOT(delivery, DELIVERY, _queue) != self || index == NULL || !IS(index, INDEX)
        || !IS(segment, SEGMENT) || !has_nothing_noted(self, index)) {
        return 0;
    }
    PyObject *seq_id = SLOT(delivery, DELIVERY, seq_id), *journal = SLOT(index, INDEX, journal);
    long long seq = number_of(seq_id), mask = number_of(SLOT(self, QUEUE, _check_mask));
    long long acks = number_of(SLOT(index, INDEX, acks));
    char *state = seq < 0 ? NULL : state_of(segment, seq);
    if (state == NULL || (unsigned char)*state != out || mask < 0 || acks < 0
        || !takes_writes(journal)) {
        return 0;
    }
    char word[WORD_SIZE];
    put_big_endian(word, ack_bits | seq, WORD_SIZE);
    PyObject *record = PyBytes_FromStringAndSize(word, WORD_SIZE);
    PyObject *next_acks = PyLong_FromLongLong(acks + 1), *old_acks = SLOT(index, INDEX, acks);
    if (record == NULL || next_acks == NULL) {
        Py_XDECREF(record);
        Py_XDECREF(next_acks);
        return -1;
    }
    Py_INCREF(seq_id);
    Py_INCREF(index);
    Py_INCREF(segment);
    Py_INCREF(journal);
    Py_INCREF(old_acks);
    /* Before the write: behind a call a signal's handler may raise, and then all is done. */
    *state = (char)acked;
    Py_INCREF(Py_None);
    set_slot(&SLOT(delivery, DELIVERY, _queue), Py_None);
    set_slot(&SLOT(index, INDEX, acks), next_acks);
    PyObject *done = called(SLOT(journal, JOURNAL, write), record);
    int outcome = 1;
    if (done == NULL) {
        int full = PyErr_ExceptionMatches(PyExc_ValueError);
        if ((full || PyErr_ExceptionMatches(store_error))
            && (state = state_of(segment, seq)) != NULL) {
            *state = (char)out;
            Py_INCREF(self);
            set_slot(&SLOT(delivery, DELIVERY, _queue), self);
            Py_INCREF(old_acks);
            set_slot(&SLOT(index, INDEX, acks), old_acks);
        }
        if (full) {
            PyErr_Clear();
        }
        outcome = full ? 0 : -1;
    } else if (!(seq & mask) && told(self, s__tick) < 0) {
        outcome = -1;
    } else if (!has_nothing_noted(self, index)) {
        /* Somebody else was here while the flush had its turn. */
        PyObject *forget = PyObject_GetAttr(self, s__forget);
        PyObject *forgot = forget == NULL ? NULL : PyObject_CallFunction(forget, "((O))", seq_id);
        Py_XDECREF(forget);
        Py_XDECREF(forgot);
        outcome = forgot == NULL ? -1 : 1;
    } else if (PyDict_GET_SIZE(SLOT(self, QUEUE, _stored_out)) != 0) {
        PyObject *forgot = PyObject_CallMethodOneArg(self, s__forget_stored, seq_id);
        Py_XDECREF(forgot);
        outcome = forgot == NULL ? -1 : 1;
    }
    Py_XDECREF(done);
    Py_DECREF(record);
    Py_DECREF(old_acks);
    Py_DECREF(journal);
    Py_DECREF(segment);
    Py_DECREF(index);
    Py_DECREF(seq_id);
    return outcome;
}

PyObject *
ack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs == 1 && kwnames == NULL && (IS(args[0], DELIVERY) || IS(args[0], BATCH_DELIVERY))) {
        PyObject *lock = SLOT(self, QUEUE, _lock);
        Py_XINCREF(lock);
        int outcome = take_lock(lock);
        if (outcome == 1) {
            outcome = synced(self, lock_released(lock, ack_held(self, args[0])));
        }
        Py_XDECREF(lock);
        if (outcome == 1) {
            Py_RETURN_NONE;
        }
        if (outcome < 0) {
            if (!PyErr_ExceptionMatches(store_error)) {
                clean_up(count_anew, "(O)", self);
            }
            return NULL;
        }
    }
    return leave_to(slow_ack, self, args, nargs, kwnames);
}
