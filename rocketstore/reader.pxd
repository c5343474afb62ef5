# Types for the names of reader.py.
cimport cython

from rocketstore.dispatcher cimport Dispatcher
from rocketstore.reading cimport get_messages, query_exact
from rocketstore.state cimport StoreState


cdef class Reader:
    cdef public StoreState _state
    cdef public Dispatcher _dispatcher

    @cython.locals(state=StoreState)
    cpdef object get(
        self, object topic, object queue_id, object offset, object max_num, object tags, object most, object max_bytes
    )
    @cython.locals(state=StoreState)
    cpdef list query(self, object topic, object key, object max_num, object begin, object end, bint exact)
