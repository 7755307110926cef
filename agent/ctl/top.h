/* Renders one frame of top, separate from the terminal, so that it can be tested. */
#ifndef AGENT_CTL_TOP_H
#define AGENT_CTL_TOP_H

#include "proto/base/format.h"
#include "replay.pb-c.h"

/* The contents of a frame. info and why may be NULL if the broker does not answer; then problem says so. */
struct top_frame {
    const Replay__InfoReply *info;
    const Replay__WhyReply *why;
    const char *verdict, *advice; /* what limits, and what would help; NULL: not known */
    const char *endpoint;
    const char *problem;
    double messages_rate; /* messages/s since the last frame; negative: not known */
    const char *clock;    /* "12:34:56" */
};

/* Adds at most `rows` lines, none wider than `columns` (0: any number, any width), each with its end of line. */
void top_render(struct text *out, const struct top_frame *frame, uint32_t columns, uint32_t rows);

#endif
