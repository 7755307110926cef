/* The pump matches waiting inserts and waiting samples with what the limiter of their table allows. */
#ifndef BROKER_PUMP_H
#define BROKER_PUMP_H

#include <stdbool.h>
#include <stddef.h>

struct table;
struct tables;

/* Serves the tables that were marked (table_mark). True: more could be done. */
bool pump_run(struct tables *tables);
/* Marks tables whose inserts waited for room that is there now. True: some tables were. */
bool pump_wake(struct tables *tables);
/* Writes what the first waiting insert of a table waits for: limiter, disk or memory. Empty: for nothing. */
void pump_explain_insert(const struct table *table, char *text, size_t size);

#endif
