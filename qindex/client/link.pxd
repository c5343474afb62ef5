# Types for the names of link.py.
cimport cython
from libc.stdint cimport uint64_t

from journal.memory cimport words
from qindex.server cimport frames
from qindex.server.protocol cimport Framer


cdef class Link:
    cdef public object sock, pushed
    cdef public Framer frame
    cdef public Py_ssize_t generation, most
    cdef public bint is_clean
    cdef object _poll
    cdef public int fd
    cdef bytearray _unread
    cdef Py_ssize_t _number

    @cython.locals(number=object, data=bytes, found=list)
    cpdef list exchange(self, tuple request, object queue=*)
    @cython.locals(done=Py_ssize_t)
    cpdef object send(self, bytes data)
    @cython.locals(data=bytes, unread=bytearray, found=list)
    cpdef list read(self)
    cpdef bint wait(self, object seconds) except -1


cdef class Home


cdef class Opens:
    cdef public tuple at
    cdef public object name
    cdef public Home _home


cdef class Home:
    cdef object __weakref__
    cdef public Py_ssize_t generation, ended
    cdef public bint is_closed, is_draining
    cdef public object directory, options, version, build, there, _given, _options, _linger, _lock
    cdef public object _life, _id
    cdef public bint _is_connecting
    cdef public uint64_t _stamp
    cdef public list _idle, _made

    cpdef Link take(self)
    cpdef object give(self, Link link)
    cpdef bint lives(self, Py_ssize_t generation) except -1
    @cython.locals(link=Link)
    cpdef tuple call_together(self, Opens queue, object requests)
    @cython.locals(link=Link, generation=Py_ssize_t, its_own=Py_ssize_t, at=tuple, reply=list)
    cpdef tuple make_in(self, Opens queue, tuple request)
    cpdef list make(self, Opens queue, tuple request)
    cdef object _give_up(self, Link link, object error)
