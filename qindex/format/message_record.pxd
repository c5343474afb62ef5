# Types for the names of message_record.py.
cimport cython

from journal cimport words

cdef tuple _SHORT_BODY_HEADS, _SHORT_TEXT_HEADS

cpdef bytes plain_body_head(Py_ssize_t size)
@cython.locals(middle=bytes)
cpdef bytes encode_middle(object key, object headers, object properties)
@cython.locals(data=bytes, size=Py_ssize_t, packed=bytes)
cdef bytes _pack_text(str text)
@cython.locals(plain=dict, packed=bytes)
cdef bytes _pack_table(object table)
cdef bint _is_simple(dict table) except -1
