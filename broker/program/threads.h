/* What the kernel knows of this process and its threads. */
#pragma once

#include <stdint.h>

#include "replay.pb-c.h"

#define THREADS_MOST 64u

struct thread_use {
    char name[32];   /* "core", "io/0", "disk-writer"; threads of one name count together */
    double now_s;    /* processor time of the threads that ran at the last look */
    double before_s; /* processor time at the beginning of the interval of `busy` */
};

/* Starts zero-initialised. */
struct threads {
    Replay__ProcessInfo process; /* with `rows` */
    /* By name. cpu_s includes threads that have ended, so it never goes back. busy: share of the time since an earlier look that
     * it ran; 0 until there is one. */
    Replay__ThreadInfo rows[THREADS_MOST], *row_list[THREADS_MOST];
    struct thread_use list[THREADS_MOST];
    uint32_t n;
    int64_t looked_ns; /* when all of the above was read */
    uint32_t n_before; /* rows that have a before_s */
    int64_t before_ns; /* its time */
};

/* Reads everything anew, unless it was read a moment ago. */
void threads_look(struct threads *self, int64_t now_ns);
