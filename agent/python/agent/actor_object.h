/* The type Actor, shared by actor.c (its life, act, state) and actor_observe.c (what it is told). */
#ifndef AGENT_PYTHON_ACTOR_OBJECT_H
#define AGENT_PYTHON_ACTOR_OBJECT_H

#include "agent/python/agent/agent.h"
#include "agent/python/agent/player.h"

typedef struct actor_object {
    PyObject_HEAD struct gate gate;
    struct player *player; /* NULL before _open and after close */
    bool vector;           /* arrays for several environments; otherwise values of one */
    struct array_form observation, rewards, flags, action;
    struct player_outcome kept; /* of an observe that a signal interrupted: the next call finishes it */
    void *kept_memory;          /* its arrays; NULL: there is none */
} actor_object;

/* Begins a call. False with an exception set. */
bool actor_enter(actor_object *self);
/* Runs player_prepare or player_flush with a deadline. False with an exception set. */
bool actor_prepare(actor_object *self, int64_t timeout_ms);
bool actor_confirm(actor_object *self, int64_t timeout_ms);
/* Finishes an observe that a signal interrupted. False with an exception set. */
bool actor_finish_kept(actor_object *self, int64_t timeout_ms);

/* The methods observe and observe_first. */
PyObject *actor_tell(PyObject *object, PyObject *const *args, Py_ssize_t n);
PyObject *actor_tell_first(PyObject *object, PyObject *args);

#endif
