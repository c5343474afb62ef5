# Frames of numbers and bodies, and their way through a socket, for the compiler. The interpreter's
# twins are in frames.py.
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/types.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif

    #define FRAMES_MAX_ITEMS 15
    #define FRAMES_READ 32768

    /* Bytes of a value in msgpack; 0 for a value that is left to msgpack, as all rare ones are. */
    static inline Py_ssize_t frames_width(PyObject *one) {
        if (one == Py_None || one == Py_True || one == Py_False) return 1;
        if (PyLong_CheckExact(one)) {
            int overflow;
            long long value = PyLong_AsLongLongAndOverflow(one, &overflow);
            if (overflow || value < 0) return 0;
            return value < 1 << 7 ? 1 : value < 1 << 8 ? 2 : value < 1 << 16 ? 3
                   : value <= 0xFFFFFFFFLL ? 5 : 9;
        }
        if (PyBytes_CheckExact(one)) {
            Py_ssize_t size = PyBytes_GET_SIZE(one);
            if (size > 1 << 30) return 0;
            return size + (size < 1 << 8 ? 2 : size < 1 << 16 ? 3 : 5);
        }
        return 0;
    }
    /* A byte, and the lowest `width` bytes of a number after it, the highest of them first. */
    static inline char *frames_head(char *to, int tag, uint64_t number, int width) {
        int at;
        *to++ = (char)tag;
        for (at = width - 1; at >= 0; at--) *to++ = (char)(number >> 8 * at);
        return to;
    }
    static inline char *frames_put(char *to, PyObject *one) {
        if (one == Py_None) return frames_head(to, 0xC0, 0, 0);
        if (one == Py_True) return frames_head(to, 0xC3, 0, 0);
        if (one == Py_False) return frames_head(to, 0xC2, 0, 0);
        if (PyLong_CheckExact(one)) {
            uint64_t value = (uint64_t)PyLong_AsLongLong(one);
            if (value < 1 << 7) return frames_head(to, (int)value, 0, 0);
            if (value < 1 << 8) return frames_head(to, 0xCC, value, 1);
            if (value < 1 << 16) return frames_head(to, 0xCD, value, 2);
            if (value <= 0xFFFFFFFFu) return frames_head(to, 0xCE, value, 4);
            return frames_head(to, 0xCF, value, 8);
        }
        uint64_t size = (uint64_t)PyBytes_GET_SIZE(one);
        to = size < 1 << 8 ? frames_head(to, 0xC4, size, 1)
             : size < 1 << 16 ? frames_head(to, 0xC5, size, 2) : frames_head(to, 0xC6, size, 4);
        memcpy(to, PyBytes_AS_STRING(one), (size_t)size);
        return to + size;
    }
    static inline PyObject *frames_frame(PyObject *number, PyObject *queue, PyObject *request) {
        Py_ssize_t count = PyTuple_GET_SIZE(request), items = 0, size = 1, at;
        PyObject *all[FRAMES_MAX_ITEMS];
        if (count > FRAMES_MAX_ITEMS - 2) Py_RETURN_NONE;
        all[items++] = number;
        for (at = 1; at < count; at++) {
            all[items++] = PyTuple_GET_ITEM(request, at);
            if (at == 1 && queue != Py_None) all[items++] = queue;
        }
        for (at = 0; at < items; at++) {
            Py_ssize_t width = frames_width(all[at]);
            if (width == 0) Py_RETURN_NONE;
            size += width;
        }
        PyObject *made = PyBytes_FromStringAndSize(NULL, 4 + size);
        if (made == NULL) return NULL;
        char *to = PyBytes_AS_STRING(made);
        for (at = 3; at >= 0; at--) *to++ = (char)((uint64_t)size >> 8 * at);
        *to++ = (char)(0x90 | items);
        for (at = 0; at < items; at++) to = frames_put(to, all[at]);
        return made;
    }

    static inline uint64_t frames_number(const unsigned char *at, int width) {
        uint64_t number = 0;
        while (width-- > 0) number = number << 8 | *at++;
        return number;
    }
    /* One value; `from` moves past it. NULL with no error set for a value left to msgpack. */
    static inline PyObject *frames_take(const unsigned char **from, const unsigned char *end) {
        const unsigned char *at = *from;
        int tag = *at++, width = 0;
        *from = at;
        if (tag < 0x80) return PyLong_FromLong(tag);
        switch (tag) {
            case 0xC0: Py_RETURN_NONE;
            case 0xC2: Py_RETURN_FALSE;
            case 0xC3: Py_RETURN_TRUE;
            case 0xC4: case 0xC5: case 0xC6: width = 1 << (tag - 0xC4); break;
            case 0xCC: case 0xCD: case 0xCE: case 0xCF: width = 1 << (tag - 0xCC); break;
            default: return NULL;
        }
        if (end - at < width) return NULL;
        uint64_t number = frames_number(at, width);
        at += width;
        if (tag >= 0xCC) {
            *from = at;
            return PyLong_FromUnsignedLongLong(number);
        }
        if ((uint64_t)(end - at) < number) return NULL;
        *from = at + number;
        return PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)number);
    }
    static inline PyObject *frames_values(PyObject *data, Py_ssize_t start) {
        Py_ssize_t size = PyBytes_GET_SIZE(data), at, items;
        const unsigned char *from = (const unsigned char *)PyBytes_AS_STRING(data) + start;
        const unsigned char *end = from + (size - start);
        if (start < 0 || start >= size || (*from & 0xF0) != 0x90) Py_RETURN_NONE;
        items = *from++ & 0x0F;
        PyObject *made = PyList_New(items);
        if (made == NULL) return NULL;
        for (at = 0; at < items; at++) {
            PyObject *one = from < end ? frames_take(&from, end) : NULL;
            if (one == NULL) break;
            PyList_SET_ITEM(made, at, one);
        }
        if (at == items && from == end) return made;
        Py_DECREF(made);
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }

    /* What does not go at once is left to the socket: a wait, a signal, an error, an event loop. */
    static inline PyObject *frames_received(int fd, int may_wait) {
        char data[FRAMES_READ];
        ssize_t size;
        if (may_wait) {
            /* A handler that has to run first may end the wait: the interpreter looks for it before
               each call, and no compiled caller does. */
            do {
                if (PyErr_CheckSignals()) return NULL;
                Py_BEGIN_ALLOW_THREADS
                size = recv(fd, data, FRAMES_READ, 0);
                Py_END_ALLOW_THREADS
            } while (size < 0 && errno == EINTR);
        } else {
            size = recv(fd, data, FRAMES_READ, MSG_DONTWAIT);
        }
        if (size < 0) Py_RETURN_NONE;
        return PyBytes_FromStringAndSize(data, size);
    }
    static inline Py_ssize_t frames_sent(int fd, PyObject *data) {
        return (Py_ssize_t)send(fd, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    """
    uint64_t frames_number(const unsigned char *, int) nogil
    object frames_frame(object, object, tuple)
    object frames_values(bytes, Py_ssize_t)
    object frames_received(int, bint)
    Py_ssize_t frames_sent(int, bytes)


cdef inline bytes frame_of(object number, object queue, tuple request):
    return frames_frame(number, queue, request)


cdef inline Py_ssize_t size_of(bytes data, Py_ssize_t at) except -1:
    if at < 0 or at + 4 > len(data):
        raise IndexError(at)
    return frames_number(<const unsigned char *>PyBytes_AS_STRING(data) + at, 4)


cdef inline list values_of(bytes data, Py_ssize_t start):
    return frames_values(data, start)


cdef inline bytes received(int fd, bint may_wait):
    return frames_received(fd, may_wait)


cdef inline Py_ssize_t sent(int fd, bytes data):
    return frames_sent(fd, data)
