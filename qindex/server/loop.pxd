# Types for the names of loop.py.
cimport cython

from qindex.server cimport frames
from qindex.server.protocol cimport Framer
from qindex.server.sessions cimport Session


cdef class Connection:
    cdef public object sock, consumer, unread, unsent
    cdef public int fd
    cdef public Session session
    cdef public Py_ssize_t wanted, watched, most, parts_size, under_way, answered, unsent_size
    cdef public tuple given
    cdef public list parts
    cdef public dict waiting
    cdef public bint is_closed, is_deaf, is_paused


cdef class Loop:
    cdef object __weakref__
    cdef public dict handlers, connections, to_sync
    cdef public object epoll, linger, linger_until, rung, finished, syncs, syncer, pool
    cdef public object _listener, _group, _uid, _thread
    cdef public Py_ssize_t most, _timer_count, _notes
    cdef public int event, signalled
    cdef public list _timers, renewed
    cdef public bint _ended
    cdef public dict _batched
    cdef public Framer frame

    @cython.locals(conn=Connection)
    cpdef object run(self)
    @cython.locals(data=bytes, size=Py_ssize_t, request=list)
    cdef object _read(self, Connection conn)
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, request=list)
    cpdef object _parse(self, Connection conn, object data)
    @cython.locals(other=Connection, batched=dict)
    cpdef object _send_batched(self)
    cpdef object send(self, Connection conn, bytes data)
    @cython.locals(sent=Py_ssize_t)
    cdef object _send_now(self, Connection conn, bytes data)
    cdef object _handle(self, Connection conn, list request)
