/* Configurations of runs as texts, and the mistakes in them. */
#ifndef TESTS_SUPPORT_RUNTEXT_H
#define TESTS_SUPPORT_RUNTEXT_H

/* Fails the test unless the text has exactly these problems, compared by their facts (facts.h); "": none. */
void runtext_expect(const char *text, const char *problems);

#endif
