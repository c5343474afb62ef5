# Types for the names of server.py.
cimport cython

from qindex.queue.delivery cimport Delivery
from qindex.server.loop cimport Connection, Loop
from qindex.server.sessions cimport Credit, Served, Session


cdef class Server(Loop):
    cdef public object engine
    cdef public dict _sessions, _members, _served, _numbers, _gone, _options, _restored
    cdef public bytes _run
    cdef public Py_ssize_t _next_number

    cpdef Served _queue(self, object number)
    @cython.locals(served=Served, seq=Py_ssize_t)
    cpdef object _publish(self, Connection conn, object number, list request)
    @cython.locals(session=Session, delivery=Delivery, credit=Credit)
    cpdef object _ack_one(self, Connection conn, Served served, object tag, object seq)
    @cython.locals(served=Served)
    cpdef object _ack(self, Connection conn, object number, list request)
    @cython.locals(session=Session)
    cpdef object _given(
        self,
        Connection conn,
        object number,
        Served served,
        Delivery delivery,
        bint acked,
        object at=*,
    )
