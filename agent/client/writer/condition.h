/* Conditions of patterns: what may be asked, and comparisons of a column's value or of a number of steps with a number. */
#ifndef AGENT_CLIENT_CONDITION_H
#define AGENT_CLIENT_CONDITION_H

#include <stdbool.h>

#include "agent/client/outbox/step_stream.h"
#include "replay/writer.h"

rp_status condition_check(const rp_condition *condition, const struct step_stream *stream, rp_error *err);
/* RP_WHEN_VALUE: returns true if the step that is being completed has a value in the column, and the comparison holds for it. */
bool condition_value_holds(const rp_condition *condition, const struct step_stream *stream);
/* RP_WHEN_STEPS. */
bool condition_steps_hold(const rp_condition *condition, uint64_t steps);

#endif
