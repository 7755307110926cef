/* The module replaybus._agent. */
#include "agent/python/agent/agent.h"

static PyMethodDef methods[] = {
    CORE_METHODS,
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
    static const struct core_type *const types[] = {&env_core, &vector_core, &actor_core, NULL};
    return core_module(&definition, types);
}
