/* A status as OpenMetrics text, for tools that read that format: the figures of status.json. */
#ifndef AGENT_LAUNCH_STATUS_METRICS_H
#define AGENT_LAUNCH_STATUS_METRICS_H

#include "agent/launch/observe/status.h"

/* Adds all families, each with type, unit and help, and the end mark. Figures that are not known are left out. */
void status_metrics(struct text *out, const struct status *status);

#endif
