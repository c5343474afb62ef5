/* Calls of the journal that the paths of single messages have in common. */

#include "shared.h"

/* Whether this is a journal that is awake. */
int
takes_writes(PyObject *journal)
{
    return journal != NULL && IS(journal, JOURNAL) && SLOT(journal, JOURNAL, map) != NULL
           && SLOT(journal, JOURNAL, tell) != NULL && SLOT(journal, JOURNAL, write) != NULL;
}

/* Make what was done durable, where the engine's durability asks for it. */
int
synced(PyObject *self, int outcome)
{
    if (outcome == 1 && SLOT(self, QUEUE, _sync_each) != Py_False) {
        return told(self, s__sync_each_journal) < 0 ? -1 : 1;
    }
    return outcome;
}
