/* The facts in a sentence, without its prose: places, numbers, names, keys. Tests compare the facts, so that a sentence can be
 * reworded without a failing test, and cannot lose a number without one. */
#pragma once

#include "tests/support/test.h"

/* The words with a digit, a quote, or a sign inside that prose does not have ("broker.tables[0]:", "run.yaml:3:7:",
 * "max_size", "60s"), without punctuation around them, a blank after each; the ends of lines stay, with a blank. */
void facts_of(const char *text, char *out, size_t size);
/* Returns true if the facts of `part` are among those of `text`, one right after the other. If `part` has no facts, its words
 * are compared. */
bool facts_within(const char *text, const char *part);
/* Fails the test, with both texts, unless both have the same facts in the same lines. */
void facts_same(const char *text, const char *expected);
/* Fails the test unless facts_within. */
void facts_said(const char *text, const char *part);
