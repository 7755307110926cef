/* A broker with one table "t" and a peer, for the tests of one file: each begins with begin(...) and ends with `end`. */
#pragma once

#include "tests/support/testpeer.h"

static struct embed embed;
static struct testpeer *peer;

/* The table in this flow style: "max_size: 5, remover: {kind: fifo}". The peer has an open session. */
static inline void begin(const char *table)
{
    embed_start(&embed, textf("  - {name: t, %s}\n", table), NULL);
    peer = testpeer_opened(&embed, false);
}

static inline int end(void **state)
{
    (void)state;
    embed_stop(&embed);
    return 0;
}

static inline struct table *table(void)
{
    return embed_table(&embed, "t");
}
