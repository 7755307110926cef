/* Placeholders in the user's own commands: "{service}" and the like (docs/LAUNCH.md). "{{" stands for a brace. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proto/config/schema.h"

enum placeholder {
    PLACEHOLDER_SERVICE,
    PLACEHOLDER_INGEST,
    PLACEHOLDER_EVENTS,
    PLACEHOLDER_INDEX,
    PLACEHOLDER_COUNT,
    PLACEHOLDER_SEED,
    PLACEHOLDER_FOLDER,
    PLACEHOLDER_CONFIG,
    PLACEHOLDER_HERE,
    PLACEHOLDER_TABLE,
    PLACEHOLDER_NAME,
    PLACEHOLDERS
};

/* Names without braces. */
extern const char *const placeholder_names[PLACEHOLDERS];

/* Finds the placeholder at `text`, which begins with "{"; *length is the length between its braces. PLACEHOLDERS:
 * unknown. */
enum placeholder placeholder_find(const char *text, size_t *length);

/* Reports mistakes in a user's command, a list of char *, at the key `path`. */
void placeholder_check(const struct schema_list *command, const char *path, struct schema_report *report);
