/* Shows what was measured for a plan: tables and a plot in a terminal, and two files. */
#ifndef AGENT_LAUNCH_PROFILE_VIEW_H
#define AGENT_LAUNCH_PROFILE_VIEW_H

#include "agent/launch/plan/plan.h"

/* How to draw a plot in a terminal. */
struct profile_style {
    uint32_t columns; /* 0: any */
    bool utf8;
};
void profile_print(const struct plan_input *input, const struct profile_style *style, FILE *out);
/* profile.json and profile.html into the folder. */
rp_status profile_write(const struct plan_input *input, const char *folder, rp_error *err);

#endif
