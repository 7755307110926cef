/* Line charts, as SVG for files and pages and as characters for a terminal. It knows nothing of runs. */
#ifndef AGENT_LAUNCH_PLOT_H
#define AGENT_LAUNCH_PLOT_H

#include "proto/base/format.h"

#define PLOT_MAX_LINES 8u

struct plot_line {
    const char *name;
    const double *x, *y; /* NAN in y: a gap */
    uint32_t n;
    bool points; /* draw a mark at each point */
    bool dashed;
};

struct plot {
    const char *title, *x_label, *y_label;
    struct plot_line lines[PLOT_MAX_LINES];
    uint32_t n_lines;
    bool from_zero; /* the y axis begins at 0 */
};

/* Writes an <svg> element for a file or a page: readable on light and dark, with round ticks, and a legend if there
 * are several lines. */
void plot_svg(struct text *out, const struct plot *plot, uint32_t width, uint32_t height);
/* Writes a box of characters with labelled axes. */
void plot_text(struct text *out, const struct plot *plot, uint32_t columns, uint32_t rows, bool utf8);
/* Writes &, <, > and quotes as entities. */
void plot_escape(struct text *out, const char *text);

/* ---- axes with round ticks, for both kinds of charts ---- */

struct plot_axis {
    double low, high; /* both are ticks on the y axis; the data's own ends on the x axis */
    double step, first;
    uint32_t ticks;
};

/* Computes both axes for all lines, with about this many ticks. False: there is nothing to draw. */
bool plot_axes(const struct plot *plot, uint32_t x_ticks, uint32_t y_ticks, struct plot_axis *x, struct plot_axis *y);
/* "0", "250", "0.05", "10 k": all ticks of an axis with the same digits. out: FORMAT_SIZE bytes. */
const char *plot_label(const struct plot_axis *axis, double value, char *out);

#endif
