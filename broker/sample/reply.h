/* The reply to a sample or a fetch. */
#pragma once

#include "broker/sample/picks.h"

struct reply_build;
struct samples;
struct waiter;

/* Sends picks to the client of a waiter, which has them or keeps them: of each chunk the rows that they need, and only the blocks that
 * their layouts need. text: why there are fewer than asked for. False: they did not go out, and the client was told why. */
bool reply_picks(const struct waiter *waiter, const struct picks *picks, const char *text);
/* Frees the working memory of replies. */
void reply_build_destroy(struct reply_build **self);
