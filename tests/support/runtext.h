/* Configurations of runs as texts, and the mistakes in them. */
#pragma once

#include "agent/config/config.h"

/* Reads a run that has no mistake: its text, or the default run if it is NULL, with overrides, or NULL. */
struct run_config runtext_read(const char *text, const char *const *overrides);
/* Fails the test unless the text has exactly these problems, compared by their facts (facts.h); "": none. */
void runtext_expect(const char *text, const char *problems);
