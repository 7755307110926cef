/* The module replaybus._agent. */
#include "agent/python/agent/agent.h"

static PyMethodDef methods[] = {
    {"setup", core_setup, METH_VARARGS, "setup(errors, convert): what the extension needs from Python."},
    {"numpy_setup", numpy_setup, METH_O, "numpy_setup(capsule): the table of numpy's functions."},
    {"numpy_learn", numpy_learn, METH_VARARGS,
     "numpy_learn(array, transposed, scalar): whether values of their element type are read in place."},
    {"log_set", log_set, METH_VARARGS, "log_set(function, level): the library's lines go to function(level, line)."},
    {"config", config_dict, METH_O, "config((path, text, overrides)): a run's configuration as a dict."},
    {"environments", env_list, METH_NOARGS, "[(name, help)] of the built-in environments."},
    {"run_actor", program_run_actor, METH_VARARGS,
     "run_actor(argv, open): the actor program; returns its exit status."},
    {"run_single", program_run_single, METH_VARARGS,
     "run_single(argv, open): a run in one process; returns its exit status."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "replaybus._agent",
                                        .m_doc = "Environments and actors for Python.", .m_size = -1,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit__agent(void);
PyMODINIT_FUNC PyInit__agent(void)
{
    PyObject *module = gate_init() ? PyModule_Create(&definition) : NULL;
    if (module && envs_register(module) && actor_register(module))
        return module;
    Py_XDECREF(module);
    return NULL;
}
