/* What the files of the report share. */
#ifndef AGENT_LAUNCH_REPORT_IMPL_H
#define AGENT_LAUNCH_REPORT_IMPL_H

#include "agent/launch/plot.h"
#include "agent/launch/report.h"

#define REPORT_POINTS 1024u
#define REPORT_EVENTS 200u

enum report_column {
    COLUMN_TIME,
    COLUMN_INSERTS,
    COLUMN_SAMPLES,
    COLUMN_SPI,
    COLUMN_ACTOR_IDLE,   /* percent */
    COLUMN_LEARNER_IDLE, /* percent */
    COLUMN_MEMORY,       /* MiB */
    REPORT_COLUMNS
};

struct report_event {
    double elapsed_s, unix_s;
    char text[512];
};

/* What metrics.jsonl says; zero-initialised. Of a long run each point is the mean of several lines. */
struct report_data {
    double *columns[REPORT_COLUMNS];
    uint32_t n, stride; /* points; lines to a point */
    double sums[REPORT_COLUMNS];
    uint32_t counts[REPORT_COLUMNS], lines; /* of the point in the making */
    double peak_memory;                     /* bytes */
    double peak_cpu;                        /* cores */
    struct report_event *events;
    uint32_t n_events, lost_events;
};

/* report_data.c. A file that is missing, cut or full of nonsense gives what can be had from it. */
void report_data_read(struct report_data *self, const char *path);
void report_data_fini(struct report_data *self);

/* report.c: the rows of predicted against achieved. */
struct report_row {
    const char *name;
    double predicted, achieved; /* NAN: not known */
    bool share;                 /* 0..1: the difference is in points of percent, not a ratio */
};
#define REPORT_ROWS 5u
void report_rows(const struct report *self, struct report_row rows[REPORT_ROWS]);
/* "5.2 k", "61%", "31.8", "-". Give out, which has FORMAT_SIZE bytes. */
const char *report_cell(const struct report_row *row, double value, char *out);
/* "+4%", "+3 points", "-". *far: by more than 20%. */
const char *report_difference(const struct report_row *row, char *out, bool *far_off);
/* A return: enough digits, and no more. */
const char *report_value(double value, char *out);

/* report_plots.c */
enum report_plot { PLOT_RETURN, PLOT_INSERTS, PLOT_SAMPLES, PLOT_SPI, PLOT_IDLE, PLOT_MEMORY, REPORT_PLOTS };
void report_plot(struct text *out, const struct report *self, const struct report_data *data, enum report_plot which,
                 uint32_t width, uint32_t height);
/* Both rates, one above the other: rates.svg. */
void report_plot_rates(struct text *out, const struct report *self, const struct report_data *data);

/* report_page.c */
void report_page(struct text *out, const struct report *self, const struct report_data *data, const char *folder);

#endif
