/* The pump matches waiting inserts and waiting samples with what the limiter of their table allows. */
#ifndef BROKER_PUMP_H
#define BROKER_PUMP_H

#include <stdbool.h>
#include <stddef.h>

struct table;
struct tables;

/* Something has changed that may unblock the table: pump_run looks at it. */
void pump_mark(struct table *table);
/* Serves the tables that were marked. True: more could be done. */
bool pump_run(struct tables *tables);
/* Writes what the first waiting insert of a table waits for: limiter, disk or memory. Empty: for nothing. */
void pump_explain_insert(const struct table *table, char *text, size_t size);

#endif
