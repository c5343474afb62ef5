# Types for the names of reading.py.
cimport cython
from libc.stdint cimport int64_t

from rocketstore.format cimport words
from rocketstore.log.commitlog cimport CommitLog
from rocketstore.queues.consumequeue cimport ConsumeQueue
from rocketstore.get_result cimport GetResult
from rocketstore.index.index_file cimport IndexFile
from rocketstore.format.index_format cimport IndexHeader
from rocketstore.format.javahash cimport index_hash

cdef Py_ssize_t FIXED_SIZE, UNIT_SIZE
cdef int _PAIR_END, _SPACE

@cython.locals(queue=ConsumeQueue, result=GetResult, data=bytes)
cpdef GetResult get_messages(
    object parts, object topic, object queue_id, object offset, object max_num, object tags, object most=*,
    object max_bytes=*
)
@cython.locals(log=CommitLog, base=Py_ssize_t, count=Py_ssize_t, first=int64_t, written=int64_t, end=int64_t, at=Py_ssize_t,
               number=Py_ssize_t, size=int64_t)
cdef Py_ssize_t _take_all(object parts, bytes data, GetResult result, object most, object max_bytes) except -1
@cython.locals(log=CommitLog, file=IndexFile, header=IndexHeader, data=bytes, offset=int64_t, first_key=bytes, found=list, raw=bytes, seed=object, field=bytes,
               key_hash=int64_t, stored=int64_t)
cpdef list query_exact(object parts, str topic, str key, object max_num, int64_t begin, int64_t end)
@cython.locals(at=Py_ssize_t, end=Py_ssize_t, after=int)
cdef bint _is_wanted(bytes raw, bytes field, str key, bytes first_key) except -1
