/* The names of the built-in environments. */
#include "agent/env/env.h"
#include "agent/python/agent/agent.h"

PyObject *env_list(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *list = PyList_New(0);
    for (const rp_env_ops *const *ops = env_builtin; list && *ops; ops++) {
        PyObject *row = Py_BuildValue("(ss)", (*ops)->name, (*ops)->help);
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}
