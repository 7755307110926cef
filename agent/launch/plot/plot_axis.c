/* Axes with round ticks. */
#include <math.h>
#include <stdio.h>

#include "agent/launch/plot/plot_axis.h"

#define PLOT_LARGEST 1e200

bool plot_drawable(double value)
{
    return isfinite(value) && fabs(value) < PLOT_LARGEST;
}

/* 1, 2 or 5 times a power of ten, so that about n steps make up the range. */
static double round_step(double range, uint32_t n)
{
    double raw = range / (n > 2 ? n : 2), power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part <= 1.0001 ? 1 : part <= 2.0001 ? 2 : part <= 5.0001 ? 5 : 10);
}

/* whole: the ends move out to ticks. */
static void axis_set(struct plot_axis *self, double low, double high, uint32_t n, bool whole)
{
    double size = fmax(fabs(low), fabs(high));
    if (!(high - low > size * 1e-9)) {
        /* A single value is put in the middle. */
        double margin = size > 0 ? size * 0.1 : 1;
        low -= margin;
        high += margin;
    }
    self->step = round_step(high - low, n);
    self->low = whole ? floor(low / self->step + 1e-6) * self->step : low;
    self->high = whole ? ceil(high / self->step - 1e-6) * self->step : high;
    self->first = ceil(self->low / self->step - 1e-6) * self->step;
    double ticks = floor((self->high - self->first) / self->step + 1e-6) + 1;
    self->ticks = ticks < 0 ? 0 : ticks > PLOT_MAX_TICKS ? PLOT_MAX_TICKS : (uint32_t)ticks;
}

bool plot_axes(const struct plot *plot, uint32_t x_ticks, uint32_t y_ticks, struct plot_axis *x, struct plot_axis *y)
{
    double left = INFINITY, right = -INFINITY, low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < plot->n_lines && i < PLOT_MAX_LINES; i++) {
        const struct plot_line *line = &plot->lines[i];
        for (uint32_t k = 0; k < line->n; k++) {
            if (!plot_drawable(line->x[k]) || !plot_drawable(line->y[k]))
                continue;
            left = fmin(left, line->x[k]);
            right = fmax(right, line->x[k]);
            low = fmin(low, line->y[k]);
            high = fmax(high, line->y[k]);
        }
    }
    if (!(left <= right))
        return false;
    if (plot->from_zero) {
        low = fmin(low, 0);
        high = fmax(high, 0);
    }
    /* An axis that begins near 0 begins at 0. */
    if (left > 0 && left < 0.5 * right)
        left = 0;
    /* A constant 0 lies at the lower end of its axis. */
    if (low == 0 && high == 0)
        high = 1;
    axis_set(x, left, right, x_ticks, false);
    axis_set(y, low, high, y_ticks, true);
    return true;
}

double plot_tick(const struct plot_axis *axis, uint32_t i)
{
    double value = axis->first + i * axis->step;
    return fabs(value) < axis->step * 1e-6 ? 0 : value;
}

double plot_share(const struct plot_axis *axis, double value)
{
    double share = (value - axis->low) / (axis->high - axis->low);
    return share > 1 ? 1 : share > 0 ? share : 0;
}

const char *plot_label(const struct plot_axis *axis, double value, char *out)
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    double largest = fmax(fabs(axis->low), fabs(axis->high)), scale = 1;
    uint32_t unit = 0;
    while (largest / scale >= 9999.5 && unit < 4) {
        scale *= 1000;
        unit++;
    }
    if (largest / scale >= 1e6 || axis->step < 1e-6) {
        snprintf(out, FORMAT_SIZE, "%.3g", value);
        return out;
    }
    double decimals = ceil(-log10(axis->step / scale) - 1e-6);
    int digits = decimals > 0 ? decimals < 9 ? (int)decimals : 9 : 0;
    snprintf(out, FORMAT_SIZE, "%.*f%s", digits, value / scale, value == 0 ? "" : units[unit]);
    return out;
}
