/* Reads metrics.jsonl: one status on each line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/observe/status.h"
#include "agent/launch/report/report_data.h"

#define LINE_MOST 65536

void report_data_fini(struct report_data *self)
{
    series_fini(&self->run);
    series_fini(&self->learning);
    free(self->events);
    *self = (struct report_data){0};
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

/* While processes end one after the other, rates and memory fall; that says nothing about the run. */
static void add_point(struct report_data *self, const struct status *status)
{
    const double values[REPORT_COLUMNS] = {
        [COLUMN_TIME] = status->elapsed_s,
        [COLUMN_STEPS] = (double)status->steps,
        [COLUMN_INSERTS] = status->inserts_rate,
        [COLUMN_SAMPLES] = status->samples_rate,
        [COLUMN_SPI] = status->spi,
        [COLUMN_ACTOR_IDLE] = 100 * status->actor_idle,
        [COLUMN_LEARNER_IDLE] = 100 * status->learner_idle,
        [COLUMN_MEMORY] = (double)status->memory / 1048576,
        [COLUMN_ACTOR_VALUE] = status->actor_value,
    };
    /* Lines are thinned with age: a line stands for the time up to it. */
    double last[REPORT_COLUMNS], weight = status->elapsed_s - self->elapsed_s;
    self->elapsed_s = status->elapsed_s;
    if (status->phase < PHASE_STOPPING) {
        series_add(&self->run, values, weight);
        return;
    }
    for (uint32_t c = 0; c < REPORT_COLUMNS; c++) /* actors report a last time when they end */
        last[c] = c == COLUMN_TIME || c == COLUMN_STEPS || c == COLUMN_ACTOR_VALUE ? values[c] : NAN;
    series_add(&self->run, last, weight);
}

static void add_status(struct report_data *self, const struct status *status)
{
    add_point(self, status);
    self->peak_memory = fmax(self->peak_memory, (double)status->memory);
    self->peak_cpu = fmax(self->peak_cpu, status->cpu);
    add_event(self, status);
}

void report_data_read(struct report_data *self, const char *metrics, const char *folder)
{
    *self = (struct report_data){0};
    report_learning_read(&self->learning, folder);
    FILE *file = metrics ? fopen(metrics, "re") : NULL;
    char *line = malloc(LINE_MOST);
    bool whole = true; /* the next piece begins a line */
    self->events = calloc(REPORT_EVENTS, sizeof *self->events);
    if (!self->events || !series_init(&self->run, REPORT_COLUMNS) || !file || !line)
        goto done;
    while (fgets(line, LINE_MOST, file)) {
        bool first = whole;
        whole = strchr(line, '\n') != NULL;
        struct status_copy copy;
        if (!first || !whole || !status_from_json(line, &copy))
            continue; /* the launcher never writes such lines */
        add_status(self, &copy.status);
        status_copy_fini(&copy);
    }
    series_end(&self->run);
done:
    free(line);
    if (file)
        fclose(file);
}
