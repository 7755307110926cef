/* What the kernel knows of this process and its threads. */
#ifndef BROKER_HTTP_THREADS_H
#define BROKER_HTTP_THREADS_H

#include <stdint.h>

#include "replay.pb-c.h"

#define THREADS_MOST 64u

struct thread_use {
    char name[32]; /* "core", "io/0", "disk-writer"; threads of one name count together */
    double cpu_s;  /* threads that have ended included, so this never goes back */
    double busy;   /* share of the time since an earlier look that it ran; 0 until there is one */
    double now_s;  /* processor time of the threads that ran at the last look */
};

/* Starts zero-initialised. */
struct threads {
    Replay__ProcessInfo process; /* of all below, as messages */
    Replay__ThreadInfo rows[THREADS_MOST], *row_list[THREADS_MOST];
    struct thread_use list[THREADS_MOST];
    uint32_t n;
    int64_t looked_ns; /* when all of the above was read */
    /* beginning of the interval of `busy` */
    struct thread_use before[THREADS_MOST];
    uint32_t n_before;
    int64_t before_ns;
};

/* Reads everything anew, unless it was read a moment ago. */
void threads_look(struct threads *self, int64_t now_ns);

#endif
