/* Options of a command line as data: one table, from which they are read and their help is printed. */
#ifndef AGENT_RUN_FLAGS_H
#define AGENT_RUN_FLAGS_H

#include <getopt.h>
#include <stddef.h>
#include <stdint.h>

struct flag {
    int key;      /* a letter, or a number above 255 */
    uint32_t who; /* bits of those that have it */
    const char *name, *argument, *help;
};

/* Those of `who`, one on a line. */
void flags_print(const struct flag *flags, size_t n, uint32_t who, int width);
/* The same for getopt_long; out has room for n + 1. */
void flags_names(const struct flag *flags, size_t n, uint32_t who, struct option *out);

#endif
