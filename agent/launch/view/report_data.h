/* What metrics.jsonl and the learner's reports say about a run. */
#ifndef AGENT_LAUNCH_REPORT_DATA_H
#define AGENT_LAUNCH_REPORT_DATA_H

#include "agent/launch/view/series.h"

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

/* Zero-initialised. */
struct report_data {
    struct series run;      /* report_column; until the run begins to stop */
    struct series learning; /* learning_column */
    double peak_memory;     /* bytes */
    double peak_cpu;        /* cores */
    struct report_event *events;
    uint32_t n_events, lost_events;
    double elapsed_s; /* of the line that was read last */
};

/* Reads as much as a file that is missing, cut or damaged allows. */
void report_data_read(struct report_data *self, const char *metrics, const char *folder);
void report_data_fini(struct report_data *self);

#endif
