/* Reports as a table in a CSV file: time, environment_steps, learner_steps, then one column per scalar.
 *
 * The header comes from the first report. A later report with a new name adds a column at the end: the whole table,
 * with empty fields in earlier rows, is written under a temporary name and replaces the old file in one step. A reader
 * sees the narrow table or the wide one, and all rows of a file have as many fields as its header. A file of an earlier
 * start of the process is continued; a file that does not begin with our columns stays as it is, which is an error. A
 * scalar that a report does not have is an empty field; numbers that are not finite are nan, inf and -inf.
 * Functions return false with errno set. */
#ifndef AGENT_LOG_LOG_CSV_H
#define AGENT_LOG_LOG_CSV_H

#include "agent/log/log.h"
#include "agent/log/log_file.h"

struct log_csv {
    char *path;
    struct log_file file;
    char **columns; /* names of the scalars */
    uint32_t n_columns;
};

/* Takes path. */
void log_csv_init(struct log_csv *self, char *path);
void log_csv_fini(struct log_csv *self);
bool log_csv_append(struct log_csv *self, const struct run_log_at *at, const struct agent_scalar *scalars, uint32_t n);

#endif
