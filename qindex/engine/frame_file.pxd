# Types for the names of frame_file.py.


cdef class FrameFile:
    cdef public object _fs, _poison, _what, fd, path
    cdef public Py_ssize_t end
    cdef public bint _durable
