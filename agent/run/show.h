/* Shows episodes to whoever evaluates: drawn in the terminal, at the environment's speed, until q is pressed; where there is no
 * terminal, the first one as text, a line for each step. */
#pragma once

#include "agent/run/actor.h"

struct show;

/* Says on standard error why nothing is drawn, if so. name: of the environment. stop: set to end waits; may be NULL. */
struct show *show_new(const char *name, uint64_t episodes, const atomic_bool *stop);
/* Gives the terminal back as it was. NULL is fine. */
void show_destroy(struct show **self);
/* Shows the step that the loop has just taken, and waits until its time is over. */
void show_step(struct show *self, const struct environment_loop *loop, double reward, bool ended);
