/* replaybus._agent: environments, networks and adders of the agent rooms for Python, through the limited API of Python 3.11.
 *
 * An extension of its own, because it loads OpenBLAS and MuJoCo, which "import replaybus" does not need. It holds its own copy
 * of libreplay: handles of replaybus._core are never passed to it.
 *   env_list.c   the names of the built-in environments */
#ifndef AGENT_PYTHON_AGENT_H
#define AGENT_PYTHON_AGENT_H

#include "agent/python/base/base.h"

/* The function environments(): [(name, help)] of the built-in environments. */
PyObject *env_list(PyObject *module, PyObject *unused);

#endif
