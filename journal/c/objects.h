/* What the parts in C share: attributes of Python's objects read where the slots of their classes
 * say that they stand, not looked up; calls of Python's; the setting up.
 *
 * A signal's handler can run only within a call that is made from such a part, never between two
 * of them.
 */

#ifndef JOURNAL_OBJECTS_H
#define JOURNAL_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#ifdef Py_GIL_DISABLED
#error "what is written in C relies on the interpreter's lock"
#endif

/* The attribute NAME of an object of TYPE: an lvalue, a reference that the object owns. The part
 * defines TYPE_NAME, the place, and type_of[TYPE]. */
#define SLOT(OBJECT, TYPE, NAME) (*(PyObject **)((char *)(OBJECT) + TYPE##_##NAME))
#define IS(OBJECT, TYPE) (Py_TYPE(OBJECT) == type_of[TYPE])

static inline void
set_slot(PyObject **slot, PyObject *value)
{
    PyObject *old = *slot;
    *slot = value;
    Py_XDECREF(old);
}

/* An attribute that holds an int of up to 63 bits, none of them negative; -1 for anything else. */
static inline long long
number_of(PyObject *value)
{
    if (value == NULL || !PyLong_CheckExact(value)) {
        return -1;
    }
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow ? -1 : number;
}

static inline void
put_big_endian(char *to, unsigned long long number, int size)
{
    for (int at = size - 1; at >= 0; at--, number >>= 8) {
        to[at] = (char)(number & 0xff);
    }
}

static inline unsigned long long
big_endian(const char *from, int size)
{
    unsigned long long number = 0;
    for (int at = 0; at < size; at++) {
        number = number << 8 | (unsigned char)from[at];
    }
    return number;
}

/* A part lists the attributes that it reads in SLOTS(X), of X(TYPE, NAME), and the names of methods
 * and keywords in NAMES(X), of X(NAME); these make of the lists what it needs. */
#define DECLARE_SLOT(TYPE, NAME) extern Py_ssize_t TYPE##_##NAME;
#define DEFINE_SLOT(TYPE, NAME) Py_ssize_t TYPE##_##NAME;
#define LOCATE_SLOT(TYPE, NAME) \
    if ((TYPE##_##NAME = place_of(type_of[TYPE], #NAME)) < 0) { \
        return NULL; \
    }
#define DECLARE_NAME(NAME) extern PyObject *s_##NAME;
#define DEFINE_NAME(NAME) PyObject *s_##NAME;
#define INTERN_NAME(NAME) \
    if ((s_##NAME = PyUnicode_InternFromString(#NAME)) == NULL) { \
        return NULL; \
    }

/* Calls. */
PyObject *called(PyObject *function, PyObject *argument);
int told(PyObject *object, PyObject *name);
void clean_up(PyObject *function, const char *arguments, ...);
PyObject *leave_to(PyObject *method, PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames);

/* Setting up. Objects and numbers that Python's modules give, by name; the last has no name. */
typedef struct {
    const char *name;
    PyObject **object;
    unsigned long long *number;
} Given;

Py_ssize_t place_of(PyTypeObject *type, const char *name);
PyObject *given(PyObject *dict, const char *name);
int take_types(PyObject *dict, const char *const *names, int count, PyTypeObject **types);
int take_over(PyObject *dict, const Given *all);
int put_in_place(PyTypeObject *type, PyMethodDef *method, PyObject *dict, PyObject **slow);

#endif
