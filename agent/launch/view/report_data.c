/* What a report draws: the lines of metrics.jsonl, and the losses and expectations that a learner reports about itself. */
#include "agent/launch/view/report_data.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/observe/status.h"

#define LINE_MOST 65536
#define MOST_LEARNERS 64

/* Names in the reports (agent/learn); the others are plotted against the first. */
static const char *const names[LEARNING_COLUMNS] = {
    [LEARNING_STEPS] = "learner_steps",   [LEARNING_LOSS] = "loss", [LEARNING_POLICY_LOSS] = "policy_loss",
    [LEARNING_VALUE_LOSS] = "value_loss", [LEARNING_Q] = "q",       [LEARNING_ENTROPY] = "entropy",
    [LEARNING_ACCURACY] = "accuracy",
};

static double number_of(json_object *line, const char *name)
{
    json_object *value = NULL;
    if (!json_object_object_get_ex(line, name, &value) ||
        !(json_object_is_type(value, json_type_double) || json_object_is_type(value, json_type_int)))
        return NAN;
    return json_object_get_double(value);
}

static void add_line(struct series *self, const char *text)
{
    double values[LEARNING_COLUMNS];
    json_object *line = json_tokener_parse(text);
    if (json_object_is_type(line, json_type_object)) {
        bool some = false;
        for (uint32_t c = 0; c < LEARNING_COLUMNS; c++) {
            values[c] = number_of(line, names[c]);
            some |= c != LEARNING_STEPS && isfinite(values[c]);
        }
        if (some && isfinite(values[LEARNING_STEPS]))
            series_add(self, values, 1);
    }
    json_object_put(line);
}

/* Parallel learners stay identical: one of them is enough. */
static FILE *open_reports(const char *folder)
{
    FILE *file = NULL;
    for (int i = 0; !file && i < MOST_LEARNERS; i++) {
        char name[32], path[FOLDER_SIZE + 64];
        snprintf(name, sizeof name, "learner-%d.jsonl", i);
        file = fopen(run_folder_path(path, sizeof path, folder, name), "re");
    }
    return file;
}

/* Reads FOLDER/learner-0.jsonl, or another learner's. */
static void report_learning_read(struct series *self, const char *folder)
{
    char *line = malloc(LINE_MOST);
    FILE *file = open_reports(folder);
    bool whole = true; /* the next piece begins a line */
    if (!series_init(self, LEARNING_COLUMNS) || !file || !line)
        goto done;
    while (fgets(line, LINE_MOST, file)) {
        bool first = whole;
        whole = strchr(line, '\n') != NULL;
        if (first && whole)
            add_line(self, line);
    }
    series_end(self);
done:
    free(line);
    if (file)
        fclose(file);
}

/* Reads metrics.jsonl: one status on each line. */

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
