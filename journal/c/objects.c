/* objects.h says what this is. */

#include "objects.h"

#include <structmember.h>

/* Call a function from a slot, which may have another one by the time that the call is over;
 * `argument`: NULL for none. */
PyObject *
called(PyObject *function, PyObject *argument)
{
    Py_INCREF(function);
    PyObject *result =
        argument == NULL ? PyObject_CallNoArgs(function) : PyObject_CallOneArg(function, argument);
    Py_DECREF(function);
    return result;
}

/* Call a method for what it does, of an object from a slot. */
int
told(PyObject *object, PyObject *name)
{
    Py_INCREF(object);
    PyObject *done =
        PyObject_VectorcallMethod(name, &object, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(object);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

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

/* Let the method in Python do it all. */
PyObject *
leave_to(PyObject *method, PyObject *self, PyObject *const *args, Py_ssize_t nargs,
         PyObject *kwnames)
{
    Py_ssize_t count = 1 + nargs + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    PyObject *few[12];
    PyObject **all = count <= 12 ? few : PyMem_New(PyObject *, count);
    if (all == NULL) {
        return PyErr_NoMemory();
    }
    all[0] = self;
    if (count > 1) {
        memcpy(all + 1, args, (count - 1) * sizeof(PyObject *));
    }
    PyObject *result = PyObject_Vectorcall(method, all, 1 + nargs, kwnames);
    if (all != few) {
        PyMem_Free(all);
    }
    return result;
}

/* Where instances of a type keep an attribute; -1: they keep it otherwise, and it is said. */
Py_ssize_t
place_of(PyTypeObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL) {
        return -1;
    }
    Py_ssize_t place = -1;
    if (Py_TYPE(found) == &PyMemberDescr_Type
        && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX) {
        place = ((PyMemberDescrObject *)found)->d_member->offset;
    } else {
        PyErr_Format(PyExc_TypeError, "%s.%s is not a slot", type->tp_name, name);
    }
    Py_DECREF(found);
    return place;
}

/* What a dict has under a name; a reference for good. */
PyObject *
given(PyObject *dict, const char *name)
{
    PyObject *found = PyDict_Check(dict) ? PyDict_GetItemString(dict, name) : NULL;
    if (found == NULL) {
        PyErr_Format(PyExc_KeyError, "%s", name);
        return NULL;
    }
    Py_INCREF(found);
    return found;
}

int
take_types(PyObject *dict, const char *const *names, int count, PyTypeObject **types)
{
    for (int number = 0; number < count; number++) {
        PyObject *type = given(dict, names[number]);
        if (type == NULL || !PyType_Check(type)) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_TypeError, "%s is not a type", names[number]);
            }
            return -1;
        }
        types[number] = (PyTypeObject *)type;
    }
    return 0;
}

int
take_over(PyObject *dict, const Given *all)
{
    for (const Given *one = all; one->name != NULL; one++) {
        PyObject *value = given(dict, one->name);
        if (value == NULL) {
            return -1;
        }
        if (one->object != NULL) {
            *one->object = value;
            continue;
        }
        *one->number = PyLong_AsUnsignedLongLong(value);
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* Put a path in C in the place of the method of its name, which becomes `slow`; `dict` has its
 * docstring. */
int
put_in_place(PyTypeObject *type, PyMethodDef *method, PyObject *dict, PyObject **slow)
{
    *slow = PyObject_GetAttrString((PyObject *)type, method->ml_name);
    if (*slow != NULL && !PyFunction_Check(*slow)) {
        PyErr_Format(PyExc_TypeError, "%s is no function", method->ml_name);
        return -1;
    }
    PyObject *doc = given(dict, method->ml_name);
    if (*slow == NULL || doc == NULL || (method->ml_doc = PyUnicode_AsUTF8(doc)) == NULL) {
        return -1;
    }
    PyObject *fast = PyDescr_NewMethod(type, method);
    int failed =
        fast == NULL || PyObject_SetAttrString((PyObject *)type, method->ml_name, fast) < 0;
    Py_XDECREF(fast);
    return failed ? -1 : 0;
}
