# Types for the names of message_record.py.
cimport cython

from journal.memory cimport words
from qindex.format cimport json_tables, tables

cdef tuple _SHORT_BODY_HEADS

cpdef bytes plain_body_head(Py_ssize_t size)
@cython.locals(middle=bytes)
cpdef bytes encode_middle(object key, object headers, object properties)
