/* The results of a run: report.json, report.html (the page of a run with its answers inside) and report.txt, made from the last status, the
 * plan, and the files in the run's folder. */
#pragma once

#include "agent/launch/plan/plan.h"
#include "agent/launch/process/status.h"
#include "agent/run/best.h"

/* What is compared: shares are 0 to 1; NAN: not known. */
struct report_rates {
    double inserts, samples, spi; /* per second; samples per insert */
    double actor_idle, learner_idle;
};

/* A part of a run in which the number of processes was the same. */
struct report_stretch {
    uint32_t actors, learners;
    double from_s, seconds; /* since the start of the run; that count */
    bool
        settled; /* The beginning is left out: items are sampled, and the reports cover these counts. False: it was too short. */
    struct report_rates predicted, achieved;
    struct idle_shares idle_by; /* achieved, by cause */
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
    const char *command;       /* the command line that repeats the run: "replay-launch config.yaml --set ..." */
};

/* Fills in what the plan predicts for the counts of each stretch. */
void report_predict(struct report *self);

#define REPORT_TEXT "report.txt"
/* Writes report.json, report.html and report.txt into the run's folder. */
rp_status report_write(const struct report *self, const char *folder, rp_error *err);
/* Adds the last lines in the terminal: predicted against achieved, final return, wall time, and where the page is.
 * folder NULL: it could not be written. */
void report_text(struct text *out, const struct report *self, const char *folder);

/* "done, return 480: 20000 environment steps were taken." value: the return of what the run leaves; NAN: not measured. */
void report_ended(const struct status *last, double value, char *out, size_t size);

/* "5.2 k", "31.8", "-". Gives out, which has FORMAT_SIZE bytes. */
const char *report_rate(double value, char *out);
