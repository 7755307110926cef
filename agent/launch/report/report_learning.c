/* What a learner reports about itself: the curves of its losses and of its expectations. */
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/report/report_data.h"

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

void report_learning_read(struct series *self, const char *folder)
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
