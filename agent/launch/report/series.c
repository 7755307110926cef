/* Numbers over time, in as many columns as a report needs. A long run has more lines than a chart has points: then
 * each point is the mean of several lines. */
#include <math.h>
#include <stdlib.h>

#include "agent/launch/report/series.h"

bool series_init(struct series *self, uint32_t width)
{
    *self = (struct series){.width = width, .stride = 1};
    for (uint32_t c = 0; c < width; c++) {
        self->columns[c] = calloc(REPORT_POINTS, sizeof **self->columns);
        if (!self->columns[c]) {
            series_fini(self);
            return false;
        }
    }
    return true;
}

void series_fini(struct series *self)
{
    for (uint32_t c = 0; c < self->width; c++)
        free(self->columns[c]);
    *self = (struct series){0};
}

/* Merges pairs of points, so that there is room for as many again. */
static void halve(struct series *self)
{
    for (uint32_t c = 0; c < self->width; c++) {
        double *column = self->columns[c];
        for (uint32_t i = 0; i < self->n / 2; i++) {
            double a = column[2 * i], b = column[2 * i + 1];
            column[i] = isnan(a) ? b : isnan(b) ? a : (a + b) / 2;
        }
    }
    self->n /= 2;
    self->stride *= 2;
}

void series_end(struct series *self)
{
    if (!self->lines)
        return;
    if (self->n == REPORT_POINTS)
        halve(self);
    for (uint32_t c = 0; c < self->width; c++) {
        self->columns[c][self->n] = self->counts[c] ? self->sums[c] / self->counts[c] : NAN;
        self->sums[c] = 0;
        self->counts[c] = 0;
    }
    self->lines = 0;
    self->n++;
}

void series_add(struct series *self, const double *values)
{
    for (uint32_t c = 0; c < self->width; c++) {
        if (!isfinite(values[c]))
            continue;
        self->sums[c] += values[c];
        self->counts[c]++;
    }
    if (++self->lines >= self->stride)
        series_end(self);
}

double series_last(const struct series *self, uint32_t column)
{
    for (uint32_t i = self->n; i-- > 0 && column < self->width;)
        if (!isnan(self->columns[column][i]))
            return self->columns[column][i];
    return NAN;
}
