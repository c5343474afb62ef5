/* The bodies of a run of usual records; rocketstore/bodies.py has the function that this one stands
 * for. */

#include "shared.h"

/* Places in a record. */
enum { MAGIC_AT = 4, CRC_AT = 8, OFFSET_AT = 28, FLAGS_AT = 39 };

/* The body of the usual record of `size` bytes at `record`, whose physical offset is `place`: a new
 * reference; NULL: raised, or the record is another one, or damaged. */
static PyObject *
body_of(const char *record, long long place, long long size)
{
    unsigned long long length = big_endian(record + head_size - 4, 4);
    if (big_endian(record + MAGIC_AT, 4) != magic
        || big_endian(record + OFFSET_AT, 8) != (unsigned long long)place
        || (record[FLAGS_AT] & other_hosts) || length == 0
        || length > (unsigned long long)size - fixed_size) {
        return NULL;
    }
    PyObject *body = PyBytes_FromStringAndSize(record + head_size, (Py_ssize_t)length);
    PyObject *sum = body == NULL ? NULL : called(crc32, body);
    if (sum == NULL
        || ((PyLong_AsUnsignedLongLongMask(sum) ^ big_endian(record + CRC_AT, 4)) & CRC_BITS)
        || PyErr_Occurred()) {
        Py_CLEAR(body);
    }
    Py_XDECREF(sum);
    return body;
}

/* Add the bodies to the list; 0: raised, or not all of them are usual. */
static int
add_all(PyObject *bodies, PyObject *data, PyObject *places, PyObject *sizes)
{
    const char *record = PyBytes_AS_STRING(data), *end = record + PyBytes_GET_SIZE(data);
    for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(places); number++) {
        long long place = number_of(PyTuple_GET_ITEM(places, number));
        long long size = number_of(PyTuple_GET_ITEM(sizes, number));
        if (place < 0 || size < (long long)fixed_size || size > end - record) {
            return 0;
        }
        PyObject *body = body_of(record, place, size);
        if (body == NULL || PyList_Append(bodies, body) < 0) {
            Py_XDECREF(body);
            return 0;
        }
        Py_DECREF(body);
        record += size;
    }
    return 1;
}

PyObject *
usual_bodies(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyBytes_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])
        || !PyTuple_CheckExact(args[2]) || PyTuple_GET_SIZE(args[1]) != PyTuple_GET_SIZE(args[2])) {
        return PyErr_Format(PyExc_TypeError, "bytes, and two tuples of one length, are wanted");
    }
    PyObject *bodies = PyList_New(0);
    if (bodies != NULL && !add_all(bodies, args[0], args[1], args[2])) {
        Py_CLEAR(bodies);
    }
    return bodies != NULL || PyErr_Occurred() ? bodies : Py_NewRef(Py_None);
}
