/* Shared by the files of top. */
#ifndef AGENT_CTL_TOP_IMPL_H
#define AGENT_CTL_TOP_IMPL_H

#include "agent/ctl/top.h"

/* In a small terminal, lines of low rank stay. */
enum top_rank {
    TOP_HEAD,
    TOP_PROBLEM,
    TOP_WAITS,
    TOP_TABLES,
    TOP_MEMORY,
    TOP_WAITERS,
    TOP_ADVICE,
    TOP_MESSAGES,
    TOP_SESSIONS,
    TOP_FOOTER,
    TOP_BLANK
};

/* Adds the list of sessions in at most this many lines. (top_sessions.c) */
void top_add_sessions(struct sheet *sheet, const struct top_frame *frame, struct look *look, uint32_t most);

#endif
