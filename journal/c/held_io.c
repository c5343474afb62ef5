/* pread and pwrite of little, as os has them, that keep the interpreter's lock; journal/held_io.py
 * says why, and what is left to os.
 */

#include "module.h"

#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

static PyObject *os_pread, *os_pwrite;
static Py_ssize_t most_bytes;
static long long longest, pause_after;
/* So many writes from now on let go of the lock. */
static long long pause_left;

/* An int from 0 to `most`; less than 0 for anything else, which is for os to judge. */
static long long
up_to(long long most, PyObject *value)
{
    long long number = number_of(value);
    return number > most ? -1 : number;
}

static PyObject *
held_pread(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
#ifdef RWF_NOWAIT
    long long fd = nargs == 3 ? up_to(INT_MAX, args[0]) : -1;
    long long length = fd < 0 ? -1 : up_to(most_bytes, args[1]);
    long long offset = length < 0 ? -1 : number_of(args[2]);
    if (offset >= 0) {
        PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
        if (data == NULL) {
            return NULL;
        }
        struct iovec part = {PyBytes_AS_STRING(data), (size_t)length};
        if (preadv2((int)fd, &part, 1, (off_t)offset, RWF_NOWAIT) == length) {
            return data;
        }
        /* It is not all in memory, or the file ends, or it can't be read. */
        Py_DECREF(data);
    }
#endif
    return PyObject_Vectorcall(os_pread, args, (size_t)nargs, NULL);
}

static PyObject *
held_pwrite(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    long long fd = nargs == 3 && pause_left == 0 ? up_to(INT_MAX, args[0]) : -1;
    long long offset = fd < 0 ? -1 : number_of(args[2]);
    if (offset >= 0 && PyObject_CheckBuffer(args[1])) {
        Py_buffer data;
        if (PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE) < 0) {
            return NULL;
        }
        Py_ssize_t done = -1;
        if (data.len <= most_bytes) {
            long long start = nanoseconds();
            done = pwrite((int)fd, data.buf, (size_t)data.len, (off_t)offset);
            if (nanoseconds() - start >= longest) {
                pause_left = pause_after;
            }
        }
        PyBuffer_Release(&data);
        if (done >= 0) {
            return PyLong_FromSsize_t(done);
        }
    } else if (pause_left > 0) {
        pause_left--;
    }
    return PyObject_Vectorcall(os_pwrite, args, (size_t)nargs, NULL);
}

static PyObject *
use(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *read, *write;
    if (!PyArg_ParseTuple(args, "OOnLL", &read, &write, &most_bytes, &longest, &pause_after)) {
        return NULL;
    }
    Py_INCREF(read);
    Py_XSETREF(os_pread, read);
    Py_INCREF(write);
    Py_XSETREF(os_pwrite, write);
    pause_left = 0;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"pread", (PyCFunction)(void (*)(void))held_pread, METH_FASTCALL,
     "pread($module, fd, length, offset, /)\n--\n\n"
     "Read bytes of a file, as os.pread does."},
    {"pwrite", (PyCFunction)(void (*)(void))held_pwrite, METH_FASTCALL,
     "pwrite($module, fd, data, offset, /)\n--\n\n"
     "Write bytes to a file, as os.pwrite does."},
    {"use", use, METH_VARARGS,
     "use($module, pread, pwrite, most_bytes, longest, pause_after, /)\n--\n\n"
     "Set up: what does the rest, up to how many bytes the interpreter's lock is kept, and after "
     "a\n"
     "write of how many nanoseconds how many of those that follow let go of it."},
    {NULL, NULL, 0, NULL},
};

int
add_held_io(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
