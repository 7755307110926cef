/* What the kernel knows of this process and its threads. */
#ifndef BROKER_HTTP_THREADS_H
#define BROKER_HTTP_THREADS_H

#include <stdint.h>

#define THREADS_MOST 64u

struct thread_use {
    char name[32]; /* "core", "io/0", "disk-writer"; threads of one name count together */
    double cpu_s;  /* threads that have ended included, so this never goes back */
    double busy;   /* share of the time since an earlier look that it ran; 0 until there is one */
    double now_s;  /* processor time of the threads that ran at the last look */
};

struct process_use {
    uint64_t pid, threads, open_files;
    uint64_t resident_bytes, virtual_bytes;
    double cpu_s, start_s; /* start: seconds since 1970 */
};

/* Starts zero-initialised. */
struct threads {
    struct process_use process;
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
