# Types for the names of store.py.
from rocketstore.dispatcher cimport Dispatcher
from rocketstore.putter cimport Putter
from rocketstore.reading cimport get_messages, query_exact
from rocketstore.state cimport StoreState


cdef class Store:
    cdef object __weakref__
    cdef public object path, options
    cdef public StoreState _state
    cdef public Dispatcher _dispatcher
    cdef public Putter _putter
    cdef public object _batch_putter, _checkpointer, _file_lock, _housekeeping, _local_offsets, _log_sync, _offsets
