/* The reply to a sample or a fetch. */
#ifndef BROKER_REPLY_H
#define BROKER_REPLY_H

#include "broker/peer/peer.h"
#include "broker/sample/picks.h"

struct reply_build;

/* Sends the picks: each chunk at most once, and only the blocks that their layouts need. False: they did not go out. */
bool reply_picks(struct broker *broker, const struct envelope *to, uint64_t id, const struct table *table,
                 const struct picks *picks, const char *text, bool partial, int64_t waited_ns);
/* Frees the working memory of replies. */
void reply_build_destroy(struct reply_build **self);

#endif
