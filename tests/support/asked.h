/* Single numbers of what a broker says of itself. A question that fails fails the test. */
#pragma once

#include "tests/support/scoped.h"

/* Gives the broker's state: rp_info_free. table NULL: all tables. */
rp_info *asked_info(rp_client *client, const char *table);
/* Returns a number of a table. */
uint64_t asked_table(rp_client *client, const char *table, const char *path);
/* The same of the whole broker: "server.bytes_in". */
uint64_t asked_number(rp_client *client, const char *path);
/* Returns how many wait for this kind of thing; NULL: for anything. The text of the last goes to `text`, of this size, if that is not NULL. */
uint32_t asked_waits(rp_client *client, const char *kind, char *text, size_t size);
