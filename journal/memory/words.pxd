# Numbers and bytes in memory, for the compiler. The interpreter's twins are in words.py.
#
# Each primitive checks that what it stores or reads lies within, and raises IndexError else.
from cpython.array cimport array
from cpython.exc cimport PyErr_CheckSignals
from cpython.buffer cimport (
    PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.pythread cimport PyThread_get_thread_ident
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.types cimport clockid_t

cdef extern from *:
    """
    #include <dlfcn.h>
    #include <stdatomic.h>
    #include <stdint.h>
    #include <string.h>
    #include <unistd.h>
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define words_big64(x) __builtin_bswap64(x)
    #else
    #define words_big64(x) (x)
    #endif

    /* One store instruction each, after every earlier store: a process that is killed leaves
       all of these bytes or none. */
    typedef uint64_t words_pair
        __attribute__((vector_size(16), aligned(1), may_alias));
    typedef uint64_t words_one __attribute__((aligned(1), may_alias));
    static inline void words_commit_start(char *at, const char *from) {
        words_pair pair;
        memcpy(&pair, from, 16);
        atomic_thread_fence(memory_order_release);
        *(volatile words_pair *)at = pair;
    }
    static inline void words_commit_word(char *at, uint64_t word) {
        atomic_thread_fence(memory_order_release);
        *(volatile words_one *)at = words_big64(word);
    }

    /* To call a compiled __exit__ takes one step of recursion more than to call __enter__. */
    static inline int words_room_on_stack(void) {
        int steps = 0, failed = 0;
        while (steps < 4 && !failed) {
            failed = Py_EnterRecursiveCall("");
            steps += !failed;
        }
        while (steps--) Py_LeaveRecursiveCall();
        return failed ? -1 : 0;
    }

    /* The word of the page that a fork wipes; the number of the process where there is none. The
       buffer is never given back. */
    static inline uint64_t words_kept_stamp(void) {
        static volatile uint64_t *stamp = NULL;
        static int looked = 0;
        if (!looked) {
            static Py_buffer buffer;
            PyObject *module = PyImport_ImportModule("journal.memory.forks");
            PyObject *page = module ? PyObject_GetAttrString(module, "PAGE") : NULL;
            if (page && page != Py_None && !PyObject_GetBuffer(page, &buffer, PyBUF_SIMPLE))
                stamp = (volatile uint64_t *)buffer.buf;
            Py_XDECREF(page);
            Py_XDECREF(module);
            PyErr_Clear();
            looked = 1;
        }
        return stamp != NULL ? *stamp : (uint64_t)getpid();
    }

    /* Whether it is an mmap.mmap, and no subclass, whose stores may be recorded. */
    static inline int words_is_map(PyObject *it) {
        static PyObject *kind = NULL;
        if (kind == NULL) {
            PyObject *module = PyImport_ImportModule("mmap");
            if (module == NULL) return -1;
            kind = PyObject_GetAttrString(module, "mmap");
            Py_DECREF(module);
            if (kind == NULL) return -1;
        }
        return (PyObject *)Py_TYPE(it) == kind;
    }

    /* A function in C that the library of a module of Python names; NULL where there is none. The
       module stays loaded. */
    static inline void *words_named_by(const char *module_name, const char *name) {
        PyObject *module = PyImport_ImportModule(module_name);
        PyObject *file = module ? PyObject_GetAttrString(module, "__file__") : NULL;
        const char *path = file ? PyUnicode_AsUTF8(file) : NULL;
        void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        void *found = library ? dlsym(library, name) : NULL;
        Py_XDECREF(file);
        Py_XDECREF(module);
        PyErr_Clear();
        return found;
    }

    /* xxh3 of 64 bits: the function in C of the package of Python, without a call of Python where
       its library names it. Return -1 with an exception set. */
    typedef uint64_t (*words_xxh3_type)(const void *, size_t);
    static inline words_xxh3_type words_xxh3(void) {
        static words_xxh3_type found = NULL;
        static int looked = 0;
        if (!looked) {
            *(void **)&found = words_named_by("xxhash._xxhash", "XXH3_64bits");
            if (found != NULL && found("", 0) != UINT64_C(0x2d06800538d394c2)) found = NULL;
            looked = 1;
        }
        return found;
    }
    static inline int words_sum(const char *data, Py_ssize_t size, uint64_t *sum) {
        static PyObject *function = NULL;
        PyObject *bytes, *found;
        words_xxh3_type direct = words_xxh3();
        if (direct != NULL) {
            *sum = direct(data, (size_t)size);
            return 0;
        }
        if (function == NULL) {
            PyObject *module = PyImport_ImportModule("xxhash");
            if (module == NULL) return -1;
            function = PyObject_GetAttrString(module, "xxh3_64_intdigest");
            Py_DECREF(module);
            if (function == NULL) return -1;
        }
        bytes = PyBytes_FromStringAndSize(data, size);
        if (bytes == NULL) return -1;
        found = PyObject_CallOneArg(function, bytes);
        Py_DECREF(bytes);
        if (found == NULL) return -1;
        *sum = PyLong_AsUnsignedLongLong(found);
        Py_DECREF(found);
        return *sum == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
    }

    /* Room for one more in an array of numbers that has it already. */
    #define words_has_room(it) (Py_SIZE(it) < (it)->allocated)
    #define words_grow_by_one(it) Py_SET_SIZE((it), Py_SIZE(it) + 1)
    """
    uint64_t words_big64(uint64_t) noexcept nogil
    int words_room_on_stack() except -1
    uint64_t words_kept_stamp() noexcept
    void words_commit_start(char *, const char *) noexcept nogil
    void words_commit_word(char *, uint64_t) noexcept nogil
    int words_is_map(object) except -1
    int words_sum(const char *, Py_ssize_t, uint64_t *) except -1
    bint words_has_room(array)
    void words_grow_by_one(array)


cdef inline uint64_t kept_stamp() noexcept:
    return words_kept_stamp()


cdef inline int store_record(object into, Py_ssize_t at, object record) except -1:
    cdef Py_buffer source, target
    cdef char *to
    cdef uint64_t word
    if not words_is_map(into):
        into[at + 16 : at + len(record)] = record[16:]
        into[at : min(at + 16, at + len(record))] = record[:16]
        return 0
    PyObject_GetBuffer(record, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(into, &target, PyBUF_WRITABLE)
        try:
            if at < 0 or source.len > target.len or at > target.len - source.len:
                raise IndexError("a record does not fit into the map")
            to = <char *> target.buf + at
            if source.len < 16:
                if source.len == 8:
                    memcpy(&word, source.buf, 8)
                    words_commit_word(to, words_big64(word))
                else:
                    memcpy(to, source.buf, source.len)  # no record has so many
            else:
                memcpy(to + 16, <char *> source.buf + 16, source.len - 16)
                words_commit_start(to, <char *> source.buf)
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)
    return 0


cdef inline int store_word(object into, Py_ssize_t at, uint64_t word) except -1:
    cdef Py_buffer target
    if not words_is_map(into):
        into[at : at + 8] = (<object> word).to_bytes(8, "big")
        return 0
    PyObject_GetBuffer(into, &target, PyBUF_WRITABLE)
    if at < 0 or at > target.len - 8:
        PyBuffer_Release(&target)
        raise IndexError("a record does not fit into the map")
    words_commit_word(<char *> target.buf + at, word)
    PyBuffer_Release(&target)
    return 0


cdef inline bytes seal(bytes record, Py_ssize_t at):
    cdef Py_ssize_t size = len(record)
    cdef uint64_t found = 0
    cdef bytes made
    if at < 0 or at > size - 8:
        raise IndexError("the sum does not fit into the record")
    words_sum(PyBytes_AS_STRING(record), size, &found)
    made = PyBytes_FromStringAndSize(PyBytes_AS_STRING(record), size)
    found = words_big64(found)
    memcpy(PyBytes_AS_STRING(made) + at, &found, 8)
    return made


cdef inline bytes join_record(
    uint64_t seq_id, uint64_t id_high, uint64_t expiry, bytes start, uint64_t stamp, bytes tail,
    object body, Py_ssize_t sum_at
):
    cdef Py_ssize_t size, between = len(tail)
    cdef bytes made
    cdef char *to
    cdef uint64_t number = 0
    if not isinstance(body, bytes):
        raise TypeError("a body must be bytes")
    size = len(<bytes> body)
    if len(start) != 12:
        raise IndexError("the part before the timestamp has 12 bytes")
    if size > 0xffffffff - 20 - between:
        raise OverflowError("a record has at most 4 GiB")
    if sum_at < 0 or sum_at > 52 + between + size:
        raise IndexError("the sum does not fit into the record")
    made = PyBytes_FromStringAndSize(NULL, 60 + between + size)
    to = PyBytes_AS_STRING(made)
    number = words_big64(seq_id)
    memcpy(to, &number, 8)
    memcpy(to + 16, &number, 8)
    number = words_big64(id_high)
    memcpy(to + 8, &number, 8)
    number = words_big64(expiry)
    memcpy(to + 24, &number, 8)
    number = words_big64((<uint64_t> size << 32) | <uint64_t> (20 + between + size))
    memcpy(to + 32, &number, 8)
    memcpy(to + 40, PyBytes_AS_STRING(start), 12)
    number = words_big64(stamp)
    memcpy(to + 52, &number, 8)
    memcpy(to + 60, PyBytes_AS_STRING(tail), between)
    memcpy(to + 60 + between, PyBytes_AS_STRING(body), size)
    words_sum(to, 60 + between + size, &number)
    number = words_big64(number)
    memcpy(to + sum_at, &number, 8)
    return made


cdef inline bytes join_rows(
    bytes head, uint64_t first_seq, object bodies, Py_ssize_t size, Py_ssize_t sum_at
):
    cdef Py_ssize_t before = len(head), width = before + size, count = len(bodies), done = 0
    cdef bytes made
    cdef object body
    cdef char *to
    cdef uint64_t number = 0
    if before < 24 or size < 0 or sum_at < 0 or sum_at > width - 8:
        raise IndexError("a head of 24 bytes, and the sum, do not fit into the record")
    if count > PY_SSIZE_T_MAX // width:
        raise OverflowError("too many records")
    made = PyBytes_FromStringAndSize(NULL, count * width)
    to = PyBytes_AS_STRING(made)
    for body in bodies:
        if done == count or type(body) is not bytes or len(<bytes> body) != size:
            raise TypeError("the bodies must be bytes of one length")
        memcpy(to, PyBytes_AS_STRING(head), before)
        number = words_big64(first_seq + <uint64_t> done)
        memcpy(to, &number, 8)
        memcpy(to + 16, &number, 8)
        memcpy(to + before, PyBytes_AS_STRING(body), size)
        words_sum(to, width, &number)
        number = words_big64(number)
        memcpy(to + sum_at, &number, 8)
        to += width
        done += 1
    if done != count:
        raise TypeError("the bodies must be a sequence")
    return made


cdef inline bytes join_words(uint64_t first, Py_ssize_t count):
    cdef Py_ssize_t at
    cdef uint64_t number
    cdef bytes made
    cdef char *to
    if count < 0 or count > PY_SSIZE_T_MAX // 8:
        raise OverflowError("too many records")
    made = PyBytes_FromStringAndSize(NULL, 8 * count)
    to = PyBytes_AS_STRING(made)
    for at in range(count):
        number = words_big64(first + <uint64_t> at)
        memcpy(to + 8 * at, &number, 8)
    return made


cdef inline bytes join_frame(
    bytes start, uint64_t number, bytes middle, uint64_t second, bytes tail, bytes last
):
    cdef Py_ssize_t before = len(start), between = len(middle), after = len(tail)
    cdef Py_ssize_t size = before + 8 + between + 8 + after + len(last)
    cdef uint64_t found = 0
    cdef bytes made
    cdef char *to
    if size > 0xffffffff:
        raise OverflowError("a frame has at most 4 GiB")
    made = PyBytes_FromStringAndSize(NULL, 13 + size)
    to = PyBytes_AS_STRING(made)
    memcpy(to + 12, PyBytes_AS_STRING(start), before)
    number = words_big64(number)
    memcpy(to + 12 + before, &number, 8)
    memcpy(to + 20 + before, PyBytes_AS_STRING(middle), between)
    second = words_big64(second)
    memcpy(to + 20 + before + between, &second, 8)
    memcpy(to + 28 + before + between, PyBytes_AS_STRING(tail), after)
    memcpy(to + 28 + before + between + after, PyBytes_AS_STRING(last), len(last))
    to[12 + size] = <char> 0xff
    words_sum(to + 12, size, &found)
    found = words_big64(found)
    memcpy(to + 4, &found, 8)
    found = words_big64(<uint64_t> size << 32)
    memcpy(to, &found, 4)
    return made


cdef inline int row_sums(object rows, object sums) except -1:
    cdef Py_buffer source, target
    cdef Py_ssize_t at
    PyObject_GetBuffer(rows, &source, PyBUF_STRIDES)
    try:
        PyObject_GetBuffer(sums, &target, PyBUF_WRITABLE | PyBUF_ND)
        try:
            if source.ndim != 2 or source.itemsize != 1 or source.strides[1] != 1:
                raise TypeError("rows of bytes are expected")
            if target.len != 8 * source.shape[0] or target.itemsize != 8:
                raise IndexError("the sums do not fit")
            for at in range(source.shape[0]):
                words_sum(
                    <char *> source.buf + at * source.strides[0], source.shape[1],
                    <uint64_t *> target.buf + at,
                )
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)
    return 0


cdef inline int push(array numbers, int64_t number) except -1:
    if numbers.ob_descr.typecode == c'q' and words_has_room(numbers):
        numbers.data.as_longlongs[len(numbers)] = number
        words_grow_by_one(numbers)
    else:
        numbers.append(number)
    return 0


cdef inline int room_on_stack() except -1:
    return words_room_on_stack()


cdef inline int look_for_signals() except -1:
    return PyErr_CheckSignals()


cdef inline unsigned long this_thread() noexcept:
    return <unsigned long> PyThread_get_thread_ident()


cdef inline int64_t clock_ns(int clock) noexcept nogil:
    cdef timespec now
    clock_gettime(<clockid_t> clock, &now)
    return <int64_t> now.tv_sec * 1000000000 + <int64_t> now.tv_nsec


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t> now.tv_sec * 1000000000 + <uint64_t> now.tv_nsec
