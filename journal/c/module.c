#include "module.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "journal._compiled",
    .m_doc = "What is written in C.",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__compiled(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (add_held_io(module) < 0 || add_gate(module) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
