/* Reads metrics.jsonl: a status a line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/report_impl.h"

#define LINE_MOST 65536

static bool allocate(struct report_data *self)
{
    for (uint32_t c = 0; c < REPORT_COLUMNS; c++) {
        self->columns[c] = calloc(REPORT_POINTS, sizeof **self->columns);
        if (!self->columns[c])
            return false;
    }
    self->events = calloc(REPORT_EVENTS, sizeof *self->events);
    self->stride = 1;
    return self->events != NULL;
}

void report_data_fini(struct report_data *self)
{
    for (uint32_t c = 0; c < REPORT_COLUMNS; c++)
        free(self->columns[c]);
    free(self->events);
    *self = (struct report_data){0};
}

/* Two points become one, so that there is room for as many again. */
static void halve(struct report_data *self)
{
    for (uint32_t c = 0; c < REPORT_COLUMNS; c++) {
        double *column = self->columns[c];
        for (uint32_t i = 0; i < self->n / 2; i++) {
            double a = column[2 * i], b = column[2 * i + 1];
            column[i] = isnan(a) ? b : isnan(b) ? a : (a + b) / 2;
        }
    }
    self->n /= 2;
    self->stride *= 2;
}

static void end_point(struct report_data *self)
{
    if (!self->lines)
        return;
    if (self->n == REPORT_POINTS)
        halve(self);
    for (uint32_t c = 0; c < REPORT_COLUMNS; c++) {
        self->columns[c][self->n] = self->counts[c] ? self->sums[c] / self->counts[c] : NAN;
        self->sums[c] = 0;
        self->counts[c] = 0;
    }
    self->lines = 0;
    self->n++;
}

static void add_event(struct report_data *self, const struct status *status)
{
    const struct report_event *last = self->n_events ? &self->events[self->n_events - 1] : NULL;
    if (!self->events || !status->event[0] ||
        (last && last->unix_s == status->event_unix_s && strcmp(last->text, status->event) == 0))
        return;
    if (self->n_events == REPORT_EVENTS) { /* the newest are kept */
        memmove(self->events, self->events + 1, --self->n_events * sizeof *self->events);
        self->lost_events++;
    }
    struct report_event *event = &self->events[self->n_events++];
    double age = status->unix_s - status->event_unix_s;
    event->elapsed_s = status->elapsed_s - (age > 0 && age < status->elapsed_s ? age : 0);
    event->unix_s = status->event_unix_s;
    snprintf(event->text, sizeof event->text, "%s", status->event);
}

static void add_status(struct report_data *self, const struct status *status)
{
    const double values[REPORT_COLUMNS] = {
        [COLUMN_TIME] = status->elapsed_s,
        [COLUMN_INSERTS] = status->inserts_rate,
        [COLUMN_SAMPLES] = status->samples_rate,
        [COLUMN_SPI] = status->spi,
        [COLUMN_ACTOR_IDLE] = 100 * status->actor_idle,
        [COLUMN_LEARNER_IDLE] = 100 * status->learner_idle,
        [COLUMN_MEMORY] = (double)status->memory / 1048576,
    };
    for (uint32_t c = 0; c < REPORT_COLUMNS; c++) {
        if (!isfinite(values[c]))
            continue;
        self->sums[c] += values[c];
        self->counts[c]++;
    }
    self->peak_memory = fmax(self->peak_memory, (double)status->memory);
    self->peak_cpu = fmax(self->peak_cpu, status->cpu);
    add_event(self, status);
    if (++self->lines >= self->stride)
        end_point(self);
}

void report_data_read(struct report_data *self, const char *path)
{
    *self = (struct report_data){0};
    FILE *file = path ? fopen(path, "re") : NULL;
    char *line = malloc(LINE_MOST);
    bool whole = true; /* the next piece begins a line */
    if (!allocate(self) || !file || !line)
        goto done;
    while (fgets(line, LINE_MOST, file)) {
        bool first = whole;
        whole = strchr(line, '\n') != NULL;
        struct status_copy copy;
        if (!first || !whole || !status_from_json(line, &copy))
            continue; /* nobody of ours writes such lines */
        add_status(self, &copy.status);
        status_copy_fini(&copy);
    }
    end_point(self);
done:
    free(line);
    if (file)
        fclose(file);
}
