/* One question to all shards at once, and one answer made from theirs. */
#pragma once

#include "agent/client/conn/client.h"

struct gather_plan {
    const struct conn_message *message;     /* to every shard; or, if it is NULL: */
    const struct conn_message *const *each; /* [shards] NULL: that shard is not asked */
    Replay__Reply__BodyCase want; /* body of the answers, which are unpacked; NOT_SET: only the replies are given */
    bool patient; /* a shard that is connected may take the whole time-out; otherwise a second after the first answer */
};

/* The answer of one shard. */
struct gather_answer {
    bool asked, answered;       /* answered: the broker itself has said something, also a refusal */
    rp_status status;           /* RP_OK: reply is there, and the body if it was to be unpacked */
    struct conn_ticket *ticket; /* while it is waited for */
    struct conn_reply *reply;   /* payload frames */
    union {                     /* NULL once it is taken */
        ProtobufCMessage *body;
        Replay__InfoReply *info;
        Replay__WhyReply *why;
        Replay__LimiterInfo *limiter;
        Replay__TraceReply *trace;
    };
    const char *service; /* endpoint of the shard, borrowed from the client */
    char problem[508];   /* why there is no answer, for people */
    int64_t away_ns;     /* for how long it has not answered at all; 0: it is connected */
};

struct gather_answers {
    uint32_t n, asked, good; /* shards; those that were asked; those of them with RP_OK */
    struct gather_answer of[];
};

/* Asks and waits: for every shard, but at most a second longer than for the first, and not at all for shards that have been away
 * for a second already. Returns RP_OK if at least one shard has; otherwise the refusal of one, or the reason of the first. Free
 * *out with gather_free; it is NULL after a failure. */
rp_status gather(rp_client *client, const struct gather_plan *plan, struct gather_answers **out, rp_error *err);
void gather_free(struct gather_answers **self);

/* Returns the number of the first shard that has answered well. */
uint32_t gather_first(const struct gather_answers *self);
/* Takes out the answer of a shard that has failed after it. */
void gather_drop(struct gather_answers *self, uint32_t shard, const rp_error *why);
/* Adds the tables that there are to the refusal of a question about one that the broker does not have; table may be NULL. */
void gather_explain(rp_client *client, const char *table, rp_status status, rp_error *err);
/* For changes, which all shards have to make: RP_OK, or the reason of the first that has not, with what became of the others. */
rp_status gather_all_good(const struct gather_answers *self, const char *done, rp_error *err);

/* Makes one body of those of all shards, and gives it to the caller; NULL: no memory. That of a broker without shards is unchanged.
 * Numbers are added by the rows of proto/wire/figures.h. What every shard has said by itself is in `shards`, where shards without an
 * answer are named, too. Texts of waits get their shard in front ("shard 2: ..."); a shard that does not answer is a wait of the kind
 * "shard"; a sampler that waits for all shards is there once, without a shard. */
ProtobufCMessage *gather_merge(struct gather_answers *self);
/* Moves all pointers of an array of a message to the end of another. False: no memory. */
bool gather_move(void ***into, size_t *n, void ***from, size_t *n_from);
/* Adds a message of InfoReply to the sum of those of the shards before. False: no memory. */
bool gather_add(ProtobufCMessage *into, const ProtobufCMessage *from);
/* After the last of n shards: a sum that waits gets the sentence of shard `first`. False: no memory. */
bool gather_end_limiter(Replay__LimiterInfo *into, uint32_t first, uint32_t n);
