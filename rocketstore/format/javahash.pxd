# Types for the names of javahash.py.
cimport cython
from cpython.array cimport array
from libc.stdint cimport int64_t

from rocketstore.format cimport words

cpdef int64_t hash_code(str text, int64_t seed=*) except? -1
cpdef int64_t absolute(int64_t value) except? -1
cpdef int64_t index_hash(str topic_and_key, int64_t seed=*) except? -1
@cython.locals(found=array, text=str)
cdef array _hash_each(object strings, int64_t seed)
