#include "agent/config/placeholder.h"

#include <stdio.h>
#include <string.h>

const char *const placeholder_names[PLACEHOLDERS] = {"service", "ingest", "events", "index", "count", "seed",
                                                     "folder",  "config", "here",   "table", "name"};

enum placeholder placeholder_find(const char *text, size_t *length)
{
    *length = strcspn(text + 1, "}");
    for (int i = 0; i < PLACEHOLDERS; i++) {
        if (text[1 + *length] == '}' && strlen(placeholder_names[i]) == *length &&
            strncmp(text + 1, placeholder_names[i], *length) == 0)
            return (enum placeholder)i;
    }
    return PLACEHOLDERS;
}

static void report_unknown(const char *text, size_t length, const char *path, struct schema_report *report)
{
    char name[48];
    snprintf(name, sizeof name, "%.*s", (int)(length < 40 ? length : 40), text + 1);
    const char *near = schema_nearest(name, placeholder_names, PLACEHOLDERS);
    if (text[1 + length] != '}')
        schema_problem(report, path, "'{%s' has no closing brace; '{{' stands for a brace", name);
    else if (near)
        schema_problem(report, path, "there is no placeholder {%s} (did you mean {%s}?)", name, near);
    else
        schema_problem(report, path, "there is no placeholder {%s}; docs/LAUNCH.md lists them ('{{' is a brace)", name);
}

static void check_word(const char *text, const char *path, struct schema_report *report)
{
    size_t length;
    while ((text = strchr(text, '{'))) {
        if (text[1] == '{') {
            text += 2;
            continue;
        }
        if (placeholder_find(text, &length) == PLACEHOLDERS)
            report_unknown(text, length, path, report);
        text += length + 1;
    }
}

void placeholder_check(const struct schema_list *command, const char *path, struct schema_report *report)
{
    char *const *words = command->data;
    for (uint32_t i = 0; i < command->count; i++) {
        char at[64];
        snprintf(at, sizeof at, "%s[%u]", path, i);
        if (i == 0 && !words[0][0])
            schema_problem(report, at, "is empty: write the program to start");
        check_word(words[i], at, report);
    }
}
