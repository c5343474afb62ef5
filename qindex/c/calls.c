/* Calls that the paths of single messages have in common: of the queue's lock, of its journal. */

#include "shared.h"

/* Call a function of Python's while an exception is raised, which stays raised: unless the function
 * raises one itself, which then takes its place. `arguments`: as of Py_BuildValue, a tuple. */
void
clean_up(PyObject *function, const char *arguments, ...)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    va_list list;
    va_start(list, arguments);
    PyObject *given = Py_VaBuildValue(arguments, list);
    va_end(list);
    PyObject *done = given == NULL ? NULL : PyObject_Call(function, given, NULL);
    Py_XDECREF(given);
    if (done == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return;
    }
    Py_DECREF(done);
    PyErr_Restore(type, value, trace);
}

/* Take the queue's lock: 1; 0: it is not to be had at once, this thread has it, or the queue is
 * closed; -1: raised. */
int
take(PyObject *lock)
{
    if (lock == NULL || !IS(lock, LOCK) || SLOT(lock, LOCK, take) == NULL) {
        return 0;
    }
    PyObject *mine = called(is_mine, lock);
    Py_XDECREF(mine);
    if (mine != Py_False) {
        return mine == NULL ? -1 : 0;
    }
    PyObject *taken = called(SLOT(lock, LOCK, take), NULL);
    int yes = taken == NULL ? -1 : PyObject_IsTrue(taken);
    Py_XDECREF(taken);
    if (yes < 0) {
        clean_up(let_go, "(O)", lock);
    }
    return yes;
}

/* Whether this is a journal that is awake. */
int
takes_writes(PyObject *journal)
{
    return journal != NULL && IS(journal, JOURNAL) && SLOT(journal, JOURNAL, map) != NULL
           && SLOT(journal, JOURNAL, tell) != NULL && SLOT(journal, JOURNAL, write) != NULL;
}

/* Release the lock after the steps that had this outcome; gives it, or -1. */
int
released(PyObject *lock, int outcome)
{
    if (outcome >= 0 && told(lock, s_release) < 0) {
        outcome = -1;
    }
    if (outcome < 0) {
        clean_up(let_go, "(O)", lock);
    }
    return outcome;
}

/* Make what was done durable, where the engine's durability asks for it. */
int
synced(PyObject *self, int outcome)
{
    if (outcome == 1 && SLOT(self, QUEUE, _sync_each) != Py_False) {
        return told(self, s__sync_each_journal) < 0 ? -1 : 1;
    }
    return outcome;
}
