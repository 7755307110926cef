/* The results of a run: report.json, report.html, report.txt and charts, made from the last status, the plan, metrics.jsonl and the
 * reports of a learner. */
#ifndef AGENT_LAUNCH_REPORT_H
#define AGENT_LAUNCH_REPORT_H

#include "agent/launch/plan/plan.h"
#include "agent/launch/process/status.h"
#include "agent/launch/series.h"
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
/* Adds the last lines in the terminal: predicted against achieved, final return, wall time, and where the page is. */
void report_text(struct text *out, const struct report *self, const char *folder);

/* A return with enough digits, and no more. Gives out, which has FORMAT_SIZE bytes. */
const char *report_value(double value, char *out);
/* "5.2 k", "31.8", "-". Gives out, which has FORMAT_SIZE bytes. */
const char *report_rate(double value, char *out);

/* ---- what the charts show, read from files; for tests ---- */

#define REPORT_EVENTS 200u

enum report_column {
    COLUMN_TIME,
    COLUMN_STEPS,
    COLUMN_INSERTS,
    COLUMN_SAMPLES,
    COLUMN_SPI,
    COLUMN_ACTOR_IDLE,   /* percent */
    COLUMN_LEARNER_IDLE, /* percent */
    COLUMN_MEMORY,       /* MiB */
    COLUMN_ACTOR_VALUE,  /* mean return of the actors, which explore */
    REPORT_COLUMNS
};

enum learning_column {
    LEARNING_STEPS,
    LEARNING_LOSS,
    LEARNING_POLICY_LOSS,
    LEARNING_VALUE_LOSS,
    LEARNING_Q,
    LEARNING_ENTROPY,
    LEARNING_ACCURACY,
    LEARNING_COLUMNS
};

struct report_event {
    double elapsed_s, unix_s;
    char text[512];
};

struct report_data {
    struct series run;      /* report_column; from the time on at which the run stops, only time, steps and returns */
    struct series learning; /* learning_column */
    double peak_memory;     /* bytes */
    double peak_cpu;        /* cores */
    struct report_event events[REPORT_EVENTS];
    uint32_t n_events, lost_events;
};

/* Returns the data: report_data_free. Reads as much as files that are missing, cut or damaged allow. */
struct report_data *report_data_read(const char *metrics, const char *folder);
void report_data_free(struct report_data *self);

#endif
