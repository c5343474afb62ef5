/* The module journal._compiled, and what its parts put into it: -1, and raised. */

#ifndef JOURNAL_MODULE_H
#define JOURNAL_MODULE_H

#include "objects.h"

int add_held_io(PyObject *module);
int add_gate(PyObject *module);

#endif
