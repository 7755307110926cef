/* The parts of a report: rows of a table, charts, page, JSON. Shared by report*.c. */
#ifndef AGENT_LAUNCH_REPORT_IMPL_H
#define AGENT_LAUNCH_REPORT_IMPL_H

#include "agent/launch/plot/plot.h"
#include "agent/launch/report/report.h"
#include "agent/launch/report/report_data.h"

/* The rows of predicted against achieved. (report.c) */
struct report_row {
    const char *name;
    double predicted, achieved; /* NAN: not known */
    bool share;                 /* 0 to 1: the difference is in percentage points, not a ratio */
};
#define REPORT_ROWS 5u
/* Finds what the plan predicts for a stretch's counts. False: nothing. */
bool report_predicted(const struct report *self, const struct report_stretch *stretch, struct plan_choice *out);
void report_rows(const struct report *self, const struct report_stretch *stretch, struct report_row rows[REPORT_ROWS]);
/* "4 actors, 1 learner, from 20 s on, for 31 s": the time that a stretch covers. Gives out. */
const char *report_stretch_text(const struct report_stretch *stretch, char *out, size_t size);
/* "5.2 k", "61%", "31.8", "-". Give out, which has FORMAT_SIZE bytes. */
const char *report_cell(const struct report_row *row, double value, char *out);
/* "+4%", "+3 points", "-". *far_off: by more than 20%. */
const char *report_difference(const struct report_row *row, char *out, bool *far_off);

/* The table of hosts, for a run that has several. (report_hosts.c) */
struct report_host {
    const char *name, *model;
    format_buffer actors, learners; /* planned there; "-": none */
    format_buffer lost;             /* "2 times, 1 min 5 s", "never" */
    format_buffer cores;            /* "14.2 of 16": used in the mean, while the host was there */
    bool was_lost;                  /* or was never there */
};
/* Number of rows; 0: only this machine. */
uint32_t report_hosts(const struct status *last);
void report_host(const struct status *last, uint32_t index, struct report_host *out);
void report_hosts_print(const struct status *last, FILE *out);

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
/* Two charts, one above the other, as a file: rates.svg, learning.svg. */
void report_plot_pair(struct text *out, const struct report *self, const struct report_data *data,
                      enum report_plot upper, enum report_plot lower);

/* Returns the whole text: free(). NULL: no memory. (report_json.c) */
char *report_json(const struct report *self, const struct report_data *data);

/* report_page.c */
void report_page(struct text *out, const struct report *self, const struct report_data *data, const char *folder);

#endif
