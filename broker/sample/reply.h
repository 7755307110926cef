/* The reply to a sample or a fetch. */
#ifndef BROKER_REPLY_H
#define BROKER_REPLY_H

#include "broker/peer/peer.h"
#include "broker/sample/picks.h"

struct reply_build;

struct sample_reply {
    const struct envelope *to;
    uint64_t id; /* of the request */
    bool named;  /* its client can ask again */
    struct table *table;
    const struct picks *picks;
    const char *text;
    bool partial;
    bool paid;                /* with the table's mass and room */
    bool shared;              /* the client reads shared memory, and the picks hold their chunks for it */
    struct kept_sample *kept; /* lends shared memory for packed chunks; NULL: they travel */
    bool lends_head;          /* and for what the reply says about its items */
    int64_t waited_ns;        /* since the request came; negative: the picks do not count in the table's statistics */
};

/* Sends the picks: of each chunk the rows that they need, and only the blocks that their layouts need. False: they did not go out, and
 * the client was told why. */
bool reply_picks(struct samples *samples, const struct sample_reply *reply);
/* Frees the working memory of replies. */
void reply_build_destroy(struct reply_build **self);

#endif
