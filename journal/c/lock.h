/* Taking and releasing the lock of a queue or a store. */

#ifndef JOURNAL_LOCK_H
#define JOURNAL_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int use_lock(PyObject *with);
int take_lock(PyObject *lock);
int lock_released(PyObject *lock, int outcome);

#endif
