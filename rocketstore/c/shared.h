/* What the files of rocketstore._compiled share; journal/c/objects.h says how it is done. */

#ifndef ROCKETSTORE_SHARED_H
#define ROCKETSTORE_SHARED_H

#include "../../journal/c/lock.h"
#include "../../journal/c/objects.h"

/* Types whose attributes are read. */
enum { STORE, COMMIT_LOG, PENDING, ROUTE, POISON, TYPES };
extern PyTypeObject *type_of[TYPES];

/* clang-format off */
#define SLOTS(X) \
    X(STORE, _commitlog) X(STORE, _fsync) X(STORE, _full) X(STORE, _group) X(STORE, _last_route) \
    X(STORE, _last_time) X(STORE, _lock) X(STORE, _max_size) X(STORE, _next_tick) \
    X(STORE, _pending) X(STORE, _poison) X(STORE, _refusal) X(STORE, _routes) X(STORE, _stamp) \
    X(STORE, _store_host) X(STORE, _ticks) X(STORE, _wide) \
    X(COMMIT_LOG, at) X(COMMIT_LOG, base) X(COMMIT_LOG, room) X(COMMIT_LOG, view) \
    X(PENDING, offsets) X(PENDING, queues) X(PENDING, route) \
    X(ROUTE, field) X(ROUTE, key) X(ROUTE, ordinal) X(ROUTE, queue_id) X(ROUTE, start) \
    X(ROUTE, topic) \
    X(POISON, reason)
/* clang-format on */

SLOTS(DECLARE_SLOT)

/* What Python's modules gave: functions, types, and numbers of the formats. */
extern PyObject *slow_put;
extern PyObject *crc32, *result_type;
extern unsigned long long magic, head_size, fixed_size, stamp_size, other_hosts, properties_max;
extern unsigned long long pending_max;

/* Of the checksum of a body, what a record has of it. */
#define CRC_BITS 0x7fffffff

/* Names of methods and keywords. */
/* clang-format off */
#define NAMES(X) \
    X(_begin_moment) X(commit) X(dispatch_quietly) X(keys) X(queue_id) X(tags) \
    X(unique_key)
/* clang-format on */
NAMES(DECLARE_NAME)
extern PyObject *zero;

/* put.c, bodies.c */
PyObject *put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *usual_bodies(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
