/* Line charts: SVG for files and pages, characters for a terminal. */
#ifndef AGENT_LAUNCH_PLOT_H
#define AGENT_LAUNCH_PLOT_H

#include "proto/base/format.h"

#define PLOT_MAX_LINES 8u

struct plot_line {
    const char *name;
    const double *x, *y; /* NAN in y: a gap */
    uint32_t n;
    bool points; /* a mark at each */
    bool dashed;
};

struct plot {
    const char *title, *x_label, *y_label;
    struct plot_line lines[PLOT_MAX_LINES];
    uint32_t n_lines;
    bool from_zero; /* the y axis begins at 0 */
};

/* A whole <svg>, which stands alone or in a page: readable on light and dark, round ticks, a legend if there are several lines. */
void plot_svg(struct text *out, const struct plot *plot, uint32_t width, uint32_t height);
/* A box of characters with both axes labelled. */
void plot_text(struct text *out, const struct plot *plot, uint32_t columns, uint32_t rows, bool utf8);
/* &, <, > and quotes as entities. */
void plot_escape(struct text *out, const char *text);

#endif
