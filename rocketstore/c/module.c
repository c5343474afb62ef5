/* The module rocketstore._compiled: rocketstore/compiled.py says what it is for.
 *
 * put does what the method of this name does in the usual case, step by step and in the same order,
 * on the same attributes of the same objects. Whatever is not the usual case (rare fields, a
 * queue's first message, a full file, refused writes, wrong arguments) it leaves to the method,
 * before anything has changed.
 */

#include "shared.h"

PyTypeObject *type_of[TYPES];
static const char *const type_names[TYPES] = {
    "Store", "CommitLog", "Pending", "Route", "Poison",
};

SLOTS(DEFINE_SLOT)
NAMES(DEFINE_NAME)
PyObject *zero;

PyObject *slow_put;
PyObject *crc32, *result_type;
unsigned long long magic, head_size, fixed_size, stamp_size, other_hosts, properties_max;
unsigned long long pending_max;

static PyMethodDef put_method = {
    "put",
    (PyCFunction)(void (*)(void))put,
    METH_FASTCALL | METH_KEYWORDS,
    NULL,
};

static const Given of_layout[] = {
    {"crc32", &crc32, NULL},
    {"MAGIC", NULL, &magic},
    {"HEAD_SIZE", NULL, &head_size},
    {"FIXED_SIZE", NULL, &fixed_size},
    {"STAMP_SIZE", NULL, &stamp_size},
    {"OTHER_HOSTS", NULL, &other_hosts},
    {"PROPERTIES_MAX", NULL, &properties_max},
    {NULL, NULL, NULL},
};
static const Given of_put[] = {
    {"PutResult", &result_type, NULL},
    {"PENDING_MAX", NULL, &pending_max},
    {NULL, NULL, NULL},
};

static PyObject *
use_layout(PyObject *Py_UNUSED(module), PyObject *with)
{
    if (take_over(with, of_layout) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
install(PyObject *Py_UNUSED(module), PyObject *with)
{
    if (take_types(with, type_names, TYPES, type_of) < 0) {
        return NULL;
    }
    SLOTS(LOCATE_SLOT)
    if (take_over(with, of_put) < 0 || use_lock(with) < 0) {
        return NULL;
    }
    if (!PyType_Check(result_type)
        || !PyType_IsSubtype((PyTypeObject *)result_type, &PyTuple_Type)) {
        return PyErr_Format(PyExc_TypeError, "PutResult is a tuple");
    }
    if (put_in_place(type_of[STORE], &put_method, with, &slow_put) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"use_layout", use_layout, METH_O,
     "use_layout($module, with, /)\n--\n\n"
     "Take the layout of records from the dict `with`; it is needed for all else."},
    {"usual_bodies", (PyCFunction)(void (*)(void))usual_bodies, METH_FASTCALL,
     "usual_bodies($module, data, places, sizes, /)\n--\n\n"
     "The bodies of records that stand one after another in the bytes `data`, their checksums "
     "checked;\n"
     "None where they are not all usual ones, or one of them is damaged. `places` are their "
     "physical\n"
     "offsets, `sizes` those of the records: tuples."},
    {"install", install, METH_O,
     "install($module, with, /)\n--\n\n"
     "Put the path in the place of the method of Store; `with` has the types, functions and "
     "numbers\n"
     "that it works with, and the docstring of the method, by name. Raises TypeError and KeyError\n"
     "when something is not as it expects."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    "rocketstore._compiled",
    "What is written in C.",
    -1,
    functions,
    NULL,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC
PyInit__compiled(void)
{
    NAMES(INTERN_NAME)
    if ((zero = PyLong_FromLong(0)) == NULL) {
        return NULL;
    }
    return PyModule_Create(&module);
}
