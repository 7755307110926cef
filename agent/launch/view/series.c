/* Numbers over time, in as many columns as a report needs. A long run has more lines than a chart has points: then
 * each point is the mean of several lines, weighted by the time for which each line stands. */
#include <math.h>
#include <stdlib.h>

#include "agent/launch/view/series.h"

#define SERIES_LEAST 1e-3 /* weight of a line; two lines may have the same time */

bool series_init(struct series *self, uint32_t width)
{
    *self = (struct series){.width = width, .stride = 1, .weights = calloc(REPORT_POINTS, sizeof *self->weights)};
    if (!self->weights)
        return false;
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
    free(self->weights);
    *self = (struct series){0};
}

/* Merges pairs of points, so that there is room for as many again. */
static void halve(struct series *self)
{
    for (uint32_t c = 0; c < self->width; c++) {
        double *column = self->columns[c];
        for (uint32_t i = 0; i < self->n / 2; i++) {
            double a = column[2 * i], b = column[2 * i + 1];
            double of_a = self->weights[2 * i], of_b = self->weights[2 * i + 1];
            column[i] = isnan(a) ? b : isnan(b) ? a : (of_a * a + of_b * b) / (of_a + of_b);
        }
    }
    for (uint32_t i = 0; i < self->n / 2; i++)
        self->weights[i] = self->weights[2 * i] + self->weights[2 * i + 1];
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
        self->columns[c][self->n] = self->shares[c] > 0 ? self->sums[c] / self->shares[c] : NAN;
        self->sums[c] = 0;
        self->shares[c] = 0;
    }
    self->weights[self->n] = self->weight;
    self->weight = 0;
    self->lines = 0;
    self->n++;
}

void series_add(struct series *self, const double *values, double weight)
{
    weight = weight > SERIES_LEAST ? weight : SERIES_LEAST;
    self->weight += weight;
    for (uint32_t c = 0; c < self->width; c++) {
        if (!isfinite(values[c]))
            continue;
        self->sums[c] += weight * values[c];
        self->shares[c] += weight;
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
