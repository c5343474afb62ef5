# Types for the names of store.py.
from rocketstore.putter cimport Putter
from rocketstore.reader cimport Reader
from rocketstore.state cimport StoreState


cdef class Store:
    cdef object __weakref__
    cdef public object path, options
    cdef public StoreState _state
    cdef public Putter _putter
    cdef public Reader _reader
    cdef public object _background, _batch_putter, _checkpointer, _cleaner, _delayed, _dispatcher, _file_lock
    cdef public object _local_offsets, _log_sync, _offsets
