/* Environments in Python for the actor program. The adapter (replaybus.adapter) is the Python half: it turns observations and
 * actions into rows of memory that this half owns. The program runs without the GIL; each call of an environment takes it. */
#ifndef AGENT_PYTHON_PROVIDER_H
#define AGENT_PYTHON_PROVIDER_H

#include "agent/env/env.h"
#include "agent/python/agent/agent.h"

struct python_provider {
    struct env_provider provider; /* ctx is this struct */
    PyObject *open;               /* open(python, gym, options, n) gives the adapter's Environments; borrowed */
    PyThreadState *thread;        /* the program's thread while it does without the GIL */
};

/* Call with the GIL; release it before the program runs, and keep the thread's state in self->thread. */
void python_provider_init(struct python_provider *self, PyObject *open);

#endif
