/* Gate, where a thread waits for its turn; journal/gate.py says why. */

#include "module.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#define MOST_NANOSECONDS 50000
#define LOOKS 64

enum { CLOSED, CALLED, OPEN };

typedef struct {
    PyObject_HEAD
    atomic_int state;
    sem_t called;
} Gate;

/* The one that was called last, until it is open. */
static Gate *next;

static PyObject *
gate_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    Gate *gate = (Gate *)type->tp_alloc(type, 0);
    if (gate != NULL && sem_init(&gate->called, 0, 0) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(gate);
    }
    return (PyObject *)gate;
}

static void
gate_dealloc(PyObject *self)
{
    sem_destroy(&((Gate *)self)->called);
    Py_TYPE(self)->tp_free(self);
}

/* With or without the interpreter's lock. */
static void
open_gate(Gate *gate)
{
    if (gate != NULL) {
        atomic_store_explicit(&gate->state, OPEN, memory_order_release);
    }
}

static Gate *
take_next(void)
{
    Gate *gate = next;
    next = NULL;
    return gate;
}

static void
let_next_go(void)
{
    Gate *gate = take_next();
    open_gate(gate);
    Py_XDECREF(gate);
}

static PyObject *
open_next(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args))
{
    let_next_go();
    Py_RETURN_NONE;
}

static PyObject *
gate_call(Gate *gate, PyObject *Py_UNUSED(args))
{
    if (atomic_load(&gate->state) == CLOSED) {
        let_next_go();
        Py_INCREF(gate);
        next = gate;
        atomic_store(&gate->state, CALLED);
        sem_post(&gate->called);
    }
    Py_RETURN_NONE;
}

/* The one that called goes on for some microseconds: to sleep meanwhile, and be woken a second
 * time, would take longer. If both are on one processor, it is the other's turn. */
static void
look_out(Gate *gate)
{
    long long end = nanoseconds() + MOST_NANOSECONDS;
    do {
        for (int look = 0; look < LOOKS; look++) {
            if (atomic_load_explicit(&gate->state, memory_order_acquire) == OPEN) {
                return;
            }
        }
        sched_yield();
    } while (nanoseconds() < end);
}

static PyObject *
gate_wait(Gate *gate, PyObject *Py_UNUSED(args))
{
    while (atomic_load(&gate->state) == CLOSED) {
        Gate *other = take_next();
        int failure;
        Py_BEGIN_ALLOW_THREADS
        open_gate(other);
        failure = sem_wait(&gate->called) < 0 ? errno : 0;
        if (failure == 0) {
            look_out(gate);
        }
        Py_END_ALLOW_THREADS
        Py_XDECREF(other);
        if (failure == EINTR && PyErr_CheckSignals() < 0) {
            return NULL;
        }
    }
    if (next == gate) {
        Py_DECREF(take_next());
    }
    Py_RETURN_NONE;
}

static PyMethodDef gate_methods[] = {
    {"call", (PyCFunction)gate_call, METH_NOARGS, NULL},
    {"wait", (PyCFunction)gate_wait, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject gate_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "journal._compiled.Gate",
    .tp_basicsize = sizeof(Gate),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Where a thread waits for its turn: journal.gate.Gate.",
    .tp_new = gate_new,
    .tp_dealloc = gate_dealloc,
    .tp_methods = gate_methods,
};

static PyMethodDef functions[] = {
    {"open_next", open_next, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int
add_gate(PyObject *module)
{
    return PyModule_AddType(module, &gate_type) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
