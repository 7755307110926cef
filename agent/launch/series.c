#include "agent/launch/series.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define LINE_MOST 65536
#define LEAST 1e-3 /* weight of a line; two lines may have the same time */

double series_number(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;
    json_object_object_get_ex(object, name, &value);
    return json_map_real(value, NAN);
}

void series_fini(struct series *self)
{
    free(self->columns[0]);
    *self = (struct series){0};
}

double series_last(const struct series *self, uint32_t column)
{
    for (uint32_t i = self->n; i-- > 0 && column < self->width;)
        if (!isnan(self->columns[column][i]))
            return self->columns[column][i];
    return NAN;
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

static void end_point(struct series *self)
{
    if (!self->lines)
        return;
    if (self->n == SERIES_POINTS)
        halve(self);
    for (uint32_t c = 0; c < self->width; c++) {
        self->columns[c][self->n] = self->shares[c] > 0 ? self->sums[c] / self->shares[c] : NAN;
        self->sums[c] = self->shares[c] = 0;
    }
    self->weights[self->n++] = self->weight;
    self->weight = 0;
    self->lines = 0;
}

static void add_line(struct series *self, const double *values, double weight)
{
    self->weight += weight;
    for (uint32_t c = 0; c < self->width; c++) {
        if (!isfinite(values[c]))
            continue;
        self->sums[c] += weight * values[c];
        self->shares[c] += weight;
    }
    if (++self->lines >= self->stride)
        end_point(self);
}

void series_read(struct series *self, const struct series_source *source)
{
    double *block = need_alloc((source->width + 1) * SERIES_POINTS * sizeof *block), values[SERIES_MAX] = {NAN},
           before = NAN;
    *self = (struct series){.width = source->width, .stride = 1, .weights = block + source->width * SERIES_POINTS};
    for (uint32_t c = 0; c < self->width; c++)
        self->columns[c] = block + c * SERIES_POINTS;
    FILE *file = source->path ? fopen(source->path, "re") : NULL;
    char *text = need_alloc(LINE_MOST);
    for (bool whole = true; file && fgets(text, LINE_MOST, file);) { /* whole: the next piece begins a line */
        bool first = whole;
        whole = strchr(text, '\n') != NULL;
        struct json_object *line = first && whole ? json_tokener_parse(text) : NULL;
        for (uint32_t c = 0; c < self->width; c++)
            values[c] = json_object_is_type(line, json_type_object) ? series_number(line, source->names[c]) : NAN;
        if (isfinite(values[0])) {
            double weight = source->by_time ? values[0] - before : 1;
            before = values[0];
            if (source->line)
                source->line(source->ctx, line, values);
            add_line(self, values, weight > LEAST ? weight : LEAST);
        }
        json_object_put(line);
    }
    end_point(self);
    free(text);
    if (file)
        fclose(file);
}
