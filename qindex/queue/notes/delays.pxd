# Types for the names of delays.py.
cimport cython
from libc.stdint cimport int64_t

from qindex.index.queue_index cimport QueueIndex


cdef class DueTimes:
    cdef object __weakref__
    cdef public object _state, _file, _waiting, _due
    cdef public list _unnoted
    cdef public set _noted
    cdef public int64_t _alarm_at
    cdef QueueIndex _index

    cpdef int hold(self, Py_ssize_t seq, int64_t due) except -1
    @cython.locals(key=object)
    cpdef object hold_again(self, Py_ssize_t seq, int64_t due)

cpdef int64_t due_time(object delay, object at) except -1
cpdef object make_key(object due, object seq)
