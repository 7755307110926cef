/* What the files of the report share. */
#ifndef AGENT_LAUNCH_REPORT_IMPL_H
#define AGENT_LAUNCH_REPORT_IMPL_H

#include "agent/launch/plot/plot.h"
#include "agent/launch/report/report.h"

#define REPORT_POINTS 1024u
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
    COLUMN_ACTOR_VALUE,  /* mean return of the actors, who explore */
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

/* report_series.c: points of several columns; NAN where a column has none. Zero-initialised. */
#define SERIES_MAX 12u
struct series {
    double *columns[SERIES_MAX];
    uint32_t width, n, stride; /* columns, points; lines to a point */
    double sums[SERIES_MAX];
    uint32_t counts[SERIES_MAX], lines; /* of the point in the making */
};
/* False: no memory, and the series stays empty. */
bool series_init(struct series *self, uint32_t width);
void series_fini(struct series *self);
/* One line: as many values as there are columns. */
void series_add(struct series *self, const double *values);
/* The last point may be of fewer lines than the others. */
void series_end(struct series *self);
/* The newest value of a column; NAN: none. */
double series_last(const struct series *self, uint32_t column);

struct report_event {
    double elapsed_s, unix_s;
    char text[512];
};

/* What metrics.jsonl and the learner's reports say; zero-initialised. */
struct report_data {
    struct series run;      /* report_column: while it ran, not while it ended */
    struct series learning; /* learning_column */
    double peak_memory;     /* bytes */
    double peak_cpu;        /* cores */
    struct report_event *events;
    uint32_t n_events, lost_events;
};

/* report_data.c. A file that is missing, cut or full of nonsense gives what can be had from it. */
void report_data_read(struct report_data *self, const char *metrics, const char *folder);
void report_data_fini(struct report_data *self);
/* report_learning.c: FOLDER/learner-0.jsonl, or another learner's. */
void report_learning_read(struct series *self, const char *folder);

/* report.c: the rows of predicted against achieved. */
struct report_row {
    const char *name;
    double predicted, achieved; /* NAN: not known */
    bool share;                 /* 0..1: the difference is in points of percent, not a ratio */
};
#define REPORT_ROWS 5u
/* What the plan says of a stretch's counts. False: nothing. */
bool report_predicted(const struct report *self, const struct report_stretch *stretch, struct plan_choice *out);
void report_rows(const struct report *self, const struct report_stretch *stretch, struct report_row rows[REPORT_ROWS]);
/* "4 actors, 1 learner, from 20 s on, for 31 s": over what a stretch is measured. Gives out. */
const char *report_stretch_text(const struct report_stretch *stretch, char *out, size_t size);
/* "5.2 k", "61%", "31.8", "-". Give out, which has FORMAT_SIZE bytes. */
const char *report_cell(const struct report_row *row, double value, char *out);
/* "+4%", "+3 points", "-". *far: by more than 20%. */
const char *report_difference(const struct report_row *row, char *out, bool *far_off);
/* A return: enough digits, and no more. */
const char *report_value(double value, char *out);

/* report_plots.c */
enum report_plot {
    PLOT_RETURN,
    PLOT_LOSS,
    PLOT_VALUE,
    PLOT_INSERTS,
    PLOT_SAMPLES,
    PLOT_SPI,
    PLOT_IDLE,
    PLOT_MEMORY,
    REPORT_PLOTS
};
void report_plot(struct text *out, const struct report *self, const struct report_data *data, enum report_plot which,
                 uint32_t width, uint32_t height);
/* Two charts, one above the other, as a whole file: rates.svg, learning.svg. */
void report_plot_pair(struct text *out, const struct report *self, const struct report_data *data,
                      enum report_plot upper, enum report_plot lower);

/* report_json.c. Gives the whole text: free(); NULL: no memory. */
char *report_json(const struct report *self, const struct report_data *data);

/* report_page.c */
void report_page(struct text *out, const struct report *self, const struct report_data *data, const char *folder);

#endif
