/* Line charts out of characters, for a terminal; the page draws its own. It knows nothing of runs. */
#ifndef AGENT_LAUNCH_PLOT_H
#define AGENT_LAUNCH_PLOT_H

#include "proto/base/format.h"

#define PLOT_MAX_LINES 8u

struct plot_line {
    const char *name;
    const double *x, *y; /* NAN in y: a gap */
    uint32_t n;
    bool points; /* draw a mark at each point */
};

struct plot {
    const char *title, *x_label, *y_label;
    struct plot_line lines[PLOT_MAX_LINES];
    uint32_t n_lines;
    bool from_zero; /* the y axis begins at 0 */
};

/* Writes a box of characters with labelled axes, and a legend if there are several lines. */
void plot_text(struct text *out, const struct plot *plot, uint32_t columns, uint32_t rows, bool utf8);

#endif
