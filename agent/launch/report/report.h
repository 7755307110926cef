/* What is left of a run: report.json, report.html and its plots as SVG, from the last status, the plan and metrics.jsonl. */
#ifndef AGENT_LAUNCH_REPORT_H
#define AGENT_LAUNCH_REPORT_H

#include "agent/launch/observe/status.h"
#include "agent/launch/plan/plan.h"
#include "agent/run/best.h"

/* Rates over a part of a run. */
struct report_steady {
    double seconds; /* 0: there was none */
    double inserts, samples, spi;
    double actor_idle, learner_idle; /* NAN: not known */
    struct idle_shares idle_by;
};

/* A part of a run in which the number of processes was the same. */
struct report_stretch {
    uint32_t actors, learners;
    double from_s; /* since the run began */
    bool
        settled; /* without its beginning: items are sampled, and the reports tell of these counts. False: it was too short */
    struct report_steady rates;
};
#define REPORT_STRETCHES 16u

struct report {
    const struct status *last;
    const struct plan *plan; /* NULL: there was none */
    const struct plan_input *plan_input;
    struct report_stretch
        stretches[REPORT_STRETCHES]; /* the first has the plan's counts, the others come of resizing */
    uint32_t n_stretches;
    double final_value; /* of the parameters that reached stop.value, else of the last; NAN: not measured */
    uint32_t final_episodes;
    const char *final_weights; /* their file in the folder; NULL: none */
    const struct best *best;   /* what best.weights is worth; NULL: there is none */
    uint32_t legs;             /* 1; more after resumes */
    const char *metrics;       /* path of metrics.jsonl */
    const char *command;       /* that reproduces it: "replay-launch config.yaml --set ..." */
};

/* Writes report.json, report.html, return.svg, learning.svg, rates.svg and ratio.svg into the folder. */
rp_status report_write(const struct report *self, const char *folder, rp_error *err);
/* Predicted against achieved, final return, wall time, where the page is: the last lines in the terminal. */
void report_print(const struct report *self, const char *folder, FILE *out);

/* A return with enough digits, and no more. Gives out, which has FORMAT_SIZE bytes. */
const char *report_value(double value, char *out);

#endif
