/* The rooms whose state is kept on disk: what the journal records, what a checkpoint copies, and what a restore fills. The
 * broker fills this in once; everything is borrowed and outlives its users. */
#pragma once

#include <stdint.h>

struct broker_config;
struct layouts;
struct loop;
struct params;
struct peers;
struct samples;
struct sessions;
struct store;
struct tables;

struct durable_state {
    const struct broker_config *config;
    uint64_t instance; /* random number of this run of the broker */
    struct loop *loop;
    struct store *store;
    struct layouts *layouts;
    struct tables *tables;
    struct peers *peers; /* replies that may be asked for again, and messages that wait for the disk */
    struct samples *samples;
    struct sessions *sessions;
    struct params *params;
};
