# Types for the names of loop.py.
cimport cython

from qindex.server cimport frames
from qindex.server.flow cimport Flow
from qindex.server.limits cimport check
from qindex.server.protocol cimport Framer
from qindex.server.sessions cimport Session


cdef class Connection:
    cdef public object sock, consumer, unread, unsent
    cdef public int fd
    cdef public Session session
    cdef public Py_ssize_t wanted, watched, most, parts_size
    cdef public Flow flow
    cdef public tuple given, timer
    cdef public list parts
    cdef public dict waiting
    cdef public bint is_closed, is_deaf


cdef class Loop:
    cdef object __weakref__
    cdef public dict handlers, connections, to_sync
    cdef public object directory, timers, epoll, linger, linger_until, rung, finished, syncs, syncer, pool
    cdef public object _listener, _group, _uid, _thread
    cdef public Py_ssize_t most, most_connections, _notes
    cdef public int event, signalled, _spare
    cdef public list renewed
    cdef public bint _ended
    cdef public dict _batched
    cdef public Framer frame

    @cython.locals(conn=Connection)
    cpdef object run(self)
    @cython.locals(data=bytes, size=Py_ssize_t, request=list)
    cdef object _read(self, Connection conn)
    cpdef object _parse(self, Connection conn, object data)
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, request=list)
    cdef object _handle_all(self, Connection conn, object data)
    @cython.locals(other=Connection, batched=dict)
    cpdef object _send_batched(self)
    cpdef object send(self, Connection conn, bytes data)
    @cython.locals(sent=Py_ssize_t)
    cdef object _send_now(self, Connection conn, bytes data)
    cdef object _handle(self, Connection conn, list request)
