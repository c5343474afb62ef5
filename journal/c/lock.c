/* The lock of a queue or a store, as the paths of single messages take it: journal/patience.py. */

#include "lock.h"

#include "objects.h"

static PyTypeObject *type;
static Py_ssize_t place_of_take;
static PyObject *is_mine, *let_go, *release;
#define TAKE(LOCK) (*(PyObject **)((char *)(LOCK) + place_of_take))

int
use_lock(PyObject *with)
{
    static const char *const name = "PatientLock";
    if (take_types(with, &name, 1, &type) < 0 || (place_of_take = place_of(type, "take")) < 0) {
        return -1;
    }
    is_mine = PyObject_GetAttrString((PyObject *)type, "is_mine");
    let_go = PyObject_GetAttrString((PyObject *)type, "let_go");
    release = PyUnicode_InternFromString("release");
    return is_mine == NULL || let_go == NULL || release == NULL ? -1 : 0;
}

/* Take a queue's or a store's lock: 1; 0: it is not to be had at once, or this thread has it, or it
 * is another kind of lock: a closed queue's; -1: raised. */
int
take_lock(PyObject *lock)
{
    if (lock == NULL || Py_TYPE(lock) != type || TAKE(lock) == NULL) {
        return 0;
    }
    PyObject *mine = called(is_mine, lock);
    Py_XDECREF(mine);
    if (mine != Py_False) {
        return mine == NULL ? -1 : 0;
    }
    PyObject *taken = called(TAKE(lock), NULL);
    int yes = taken == NULL ? -1 : PyObject_IsTrue(taken);
    Py_XDECREF(taken);
    if (yes < 0) {
        clean_up(let_go, "(O)", lock);
    }
    return yes;
}

/* Release the lock after the steps that had this outcome; gives it, or -1. */
int
lock_released(PyObject *lock, int outcome)
{
    if (outcome >= 0 && told(lock, release) < 0) {
        outcome = -1;
    }
    if (outcome < 0) {
        clean_up(let_go, "(O)", lock);
    }
    return outcome;
}
