/* The configuration of the program: the file or the embedded one, with what the command line sets instead. */
#ifndef BROKER_PROGRAM_READING_H
#define BROKER_PROGRAM_READING_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/broker.h"
#include "proto/config/cli.h"

struct reading {
    const char *config;  /* NULL: the embedded one */
    const char *section; /* of the file; NULL: all of it */
    int64_t shards;      /* of the command line, which is among the overrides, too; 0: not given */
    struct cli_overrides overrides;
    bool check; /* strictly: also what only matters while it runs */
};

/* Reads the configuration: schema_free. False: it has printed what is wrong. */
bool reading_read(const struct reading *self, struct broker_config *config);
/* Prints that there are no mistakes, and what was read. */
void reading_print(const struct reading *self, const struct broker_config *config);

#endif
