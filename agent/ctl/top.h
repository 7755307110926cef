/* Renders one frame of top, separate from the terminal, so that it can be tested. */
#ifndef AGENT_CTL_TOP_H
#define AGENT_CTL_TOP_H

#include "agent/look/look.h"
#include "replay.pb-c.h"

/* A session as top shows it. */
struct top_session {
    char name[64];
    uint32_t ordinal;
    uint64_t received; /* items that have arrived */
    double rate;       /* items/s since the last frame; negative: not known */
    uint64_t waiting;  /* items that wait for room in a table */
    uint64_t credit;   /* items that it may send */
    uint64_t memory;   /* bytes that the broker keeps for it */
    uint64_t silent_ns;
    bool expired;
};

/* The contents of a frame. info and why may be NULL if the broker does not answer; then problem says so. */
struct top_frame {
    const Replay__InfoReply *info;
    const Replay__WhyReply *why;
    const char *verdict, *advice; /* what limits, and what would help; NULL: not known */
    const char *endpoint;
    const char *problem;
    double messages_rate;         /* messages/s since the last frame; negative: not known */
    const char *clock;            /* "12:34:56" */
    struct top_session *sessions; /* sorted by top_render */
    uint32_t n_sessions;
    bool by_shard; /* show the part of each shard, too */
};

/* Returns how many shards have not answered; shards may be NULL. */
uint32_t top_missing(const Replay__Shards *shards);
/* Writes whose totals a reply has: "4 shards", "3 of 4 shards"; "" for a broker that is alone. Returns out. */
const char *top_totals(const Replay__Shards *shards, char *out, size_t size);
/* Fills in what the broker says of a session; the rate is not known yet. (top_sessions.c) */
void top_session_fill(struct top_session *out, const Replay__SessionInfo *info);
/* Adds at most style->rows lines, none wider than style->columns, each with its end of line. */
void top_render(struct text *out, const struct top_frame *frame, const struct sheet_style *style, struct look *look);

#endif
