/* The report room: the results of a run. It offers report.json, report.html and charts, made from the last status,
 * the plan and metrics.jsonl (this header), and lists and compares runs of the past (runs.h). It may use plan,
 * observe and plot. */
#ifndef AGENT_LAUNCH_REPORT_H
#define AGENT_LAUNCH_REPORT_H

#include "agent/launch/observe/status.h"
#include "agent/launch/plan/plan.h"
#include "agent/run/best.h"

/* Rates over a part of a run. */
struct report_steady {
    double seconds; /* 0: no such part */
    double inserts, samples, spi;
    double actor_idle, learner_idle; /* NAN: not known */
    struct idle_shares idle_by;
};

/* A part of a run in which the number of processes was the same. */
struct report_stretch {
    uint32_t actors, learners;
    double from_s; /* since the start of the run */
    /* The beginning is left out: items are sampled, and the reports cover these counts. False: it was too short. */
    bool settled;
    struct report_steady rates;
};
#define REPORT_STRETCHES 16u

struct report {
    const struct status *last;
    const struct plan *plan; /* NULL: no plan */
    const struct plan_input *plan_input;
    struct report_stretch stretches[REPORT_STRETCHES]; /* the first has the planned counts */
    uint32_t n_stretches;
    double final_value; /* return of the parameters that reached stop.value, else of the last ones; NAN: not measured */
    uint32_t final_episodes;
    const char *final_weights; /* their file in the folder; NULL: none */
    const struct best *best;   /* the evaluation of best.weights; NULL: there is none */
    uint32_t legs;             /* 1; more after resumes */
    const char *metrics;       /* path of metrics.jsonl */
    const char *command;       /* the command line that repeats the run: "replay-launch config.yaml --set ..." */
};

#define REPORT_TEXT "report.txt"
/* Writes report.json, report.html, report.txt, return.svg, learning.svg, rates.svg and ratio.svg into the folder. */
rp_status report_write(const struct report *self, const char *folder, rp_error *err);
/* Prints the last lines in the terminal: predicted against achieved, final return, wall time, and where the page is. */
void report_print(const struct report *self, const char *folder, FILE *out);

/* A return with enough digits, and no more. Gives out, which has FORMAT_SIZE bytes. */
const char *report_value(double value, char *out);

/* A row of predicted against achieved. */
struct report_row {
    const char *name;
    double predicted, achieved; /* NAN: not known */
    bool share;                 /* 0 to 1: the difference is in percentage points, not a ratio */
};
/* "5.2 k", "61%", "31.8", "-". Gives out, which has FORMAT_SIZE bytes. */
const char *report_cell(const struct report_row *row, double value, char *out);

#endif
