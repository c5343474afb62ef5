/* The module qindex._compiled: qindex/compiled.py says what it is for.
 *
 * publish, get and ack do what the Python methods of these names do in the usual case, step by step
 * and in the same order, on the same attributes of the same objects, through the same calls of lock
 * and journal. Whatever is not the usual case (another kind of message, a full map, an empty
 * window, a closed queue, wrong arguments) they leave to those methods, before anything has
 * changed.
 */

#include "shared.h"

PyTypeObject *type_of[TYPES];
static const char *const type_names[TYPES] = {
    "Queue",    "QueueIndex",    "Journal", "Segment", "Fetched",
    "Delivery", "BatchDelivery", "Entry",   "Message",
};

SLOTS(DEFINE_SLOT)
SLOTS_OF_RECORDS(DEFINE_SLOT)
NAMES(DEFINE_NAME)
PyObject *reserve_only;

PyObject *slow_publish, *slow_publish_on_loop, *slow_get, *slow_ack;
PyObject *set_right, *put_back, *count_anew, *store_error;
PyObject *plain_heads, *plain_parts, *digest, *magic, *kind_of_record, *no_damage;
unsigned long long published, out, acked, deliver_bits, ack_bits, check_at, step_size;

static PyMethodDef methods[] = {
    {"publish", (PyCFunction)(void (*)(void))publish, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_publish_on_loop", (PyCFunction)(void (*)(void))publish_on_loop,
     METH_FASTCALL | METH_KEYWORDS, NULL},
    {"get", (PyCFunction)(void (*)(void))get, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"ack", (PyCFunction)(void (*)(void))ack, METH_FASTCALL | METH_KEYWORDS, NULL},
};
static PyObject **const slow_methods[] = {&slow_publish, &slow_publish_on_loop, &slow_get,
                                          &slow_ack};
#define METHODS 4

static const Given of_layout[] = {
    {"PLAIN_HEADS", &plain_heads, NULL},
    {"plain_parts", &plain_parts, NULL},
    {"xxh3_64_digest", &digest, NULL},
    {"MAGIC", &magic, NULL},
    {"RECORD", &kind_of_record, NULL},
    {"CHECK_START", NULL, &check_at},
    {"STEP_SIZE", NULL, &step_size},
    {"DELIVER_BITS", NULL, &deliver_bits},
    {NULL, NULL, NULL},
};
static const Given of_paths[] = {
    {"set_right", &set_right, NULL},
    {"put_back", &put_back, NULL},
    {"count_anew", &count_anew, NULL},
    {"StoreError", &store_error, NULL},
    {"PUBLISHED", NULL, &published},
    {"OUT", NULL, &out},
    {"ACKED", NULL, &acked},
    {"ACK_BITS", NULL, &ack_bits},
    {NULL, NULL, NULL},
};

static PyObject *
use_layout(PyObject *Py_UNUSED(module), PyObject *with)
{
    if (take_over(with, of_layout) < 0
        || take_types(with, type_names + ENTRY, TYPES - ENTRY, type_of + ENTRY) < 0) {
        return NULL;
    }
    SLOTS_OF_RECORDS(LOCATE_SLOT)
    if (!PyTuple_Check(plain_heads)) {
        return PyErr_Format(PyExc_TypeError, "PLAIN_HEADS is a tuple");
    }
    if (!PyBytes_Check(magic)) {
        return PyErr_Format(PyExc_TypeError, "MAGIC is bytes");
    }
    Py_RETURN_NONE;
}

static PyObject *
install(PyObject *Py_UNUSED(module), PyObject *with)
{
    if (take_types(with, type_names, ENTRY, type_of) < 0) {
        return NULL;
    }
    SLOTS(LOCATE_SLOT)
    if (take_over(with, of_paths) < 0 || use_lock(with) < 0) {
        return NULL;
    }
    for (int number = 0; number < METHODS; number++) {
        if (put_in_place(type_of[QUEUE], &methods[number], with, slow_methods[number]) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"use_layout", use_layout, METH_O,
     "use_layout($module, with, /)\n--\n\n"
     "Take the layout of plain records from the dict `with`; it is needed for all else."},
    {"read_run", read_run, METH_VARARGS,
     "read_run($module, data, offsets, start, count, first_seq, most_bytes, in_journal, /)\n--\n\n"
     "Read the records of plain messages that stand in `data` at offsets[start : start + count], "
     "64\n"
     "bits each, of seq_ids from first_seq on, up to the first that is not plain, or to about\n"
     "`most_bytes`. Those in a journal are verified; those in a segment are known to be sound.\n\n"
     "Gives lists of bodies, timestamps (nanoseconds) and deliver records. About 0.15 us a record "
     "of\n"
     "a journal, 0.07 us one of a segment; the interpreter is not let go of meanwhile."},
    {"read_sound", (PyCFunction)(void (*)(void))read_sound, METH_FASTCALL,
     "read_sound($module, data, payload, word, verified, /)\n--\n\n"
     "Read the message whose id stands at `payload` of `data`, if it has no headers and no "
     "properties\n"
     "and is sound (`verified`: its checksum is known to hold); `word`: its type and seq_id as in "
     "a\n"
     "journal. Gives its body, and its timestamp (nanoseconds) if it is plain, else the Entry; "
     "None\n"
     "for any other. About 0.4 us."},
    {"install", install, METH_O,
     "install($module, with, /)\n--\n\n"
     "Put these paths in the place of the methods of Queue; `with` has the types and constants "
     "that\n"
     "they work with, and the docstring of each method, by name. Raises TypeError and KeyError "
     "when\n"
     "something is not as they expect."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    "qindex._compiled",
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
    reserve_only = Py_BuildValue("(s)", "reserve");
    no_damage = PyUnicode_FromString("");
    if (reserve_only == NULL || no_damage == NULL) {
        return NULL;
    }
    return PyModule_Create(&module);
}
