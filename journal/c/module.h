/* The module journal._compiled, and what its parts put into it (-1: raised) and share. */

#ifndef JOURNAL_MODULE_H
#define JOURNAL_MODULE_H

#include "objects.h"

#include <time.h>

int add_held_io(PyObject *module);
int add_gate(PyObject *module);

static inline long long
nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
