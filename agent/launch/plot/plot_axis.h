/* Axes with round ticks, for both kinds of charts. */
#ifndef AGENT_LAUNCH_PLOT_AXIS_H
#define AGENT_LAUNCH_PLOT_AXIS_H

#include "agent/launch/plot/plot.h"

#define PLOT_MAX_TICKS 24u

struct plot_axis {
    double low, high; /* both are ticks on the y axis; the data's own ends on the x axis */
    double step, first;
    uint32_t ticks;
};

/* True for a number that can be drawn: finite, and small enough to compute differences. */
bool plot_drawable(double value);
/* Computes both axes for all lines, with about this many ticks. False: there is nothing to draw. */
bool plot_axes(const struct plot *plot, uint32_t x_ticks, uint32_t y_ticks, struct plot_axis *x, struct plot_axis *y);
double plot_tick(const struct plot_axis *axis, uint32_t i);
/* 0..1 between the ends. */
double plot_share(const struct plot_axis *axis, double value);
/* "0", "250", "0.05", "10 k": all ticks of an axis with the same digits. out: FORMAT_SIZE bytes. */
const char *plot_label(const struct plot_axis *axis, double value, char *out);

#endif
