#include "broker/store/reserve.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "proto/base/need.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; elsewhere it fails, and nothing is prefaulted */
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; elsewhere it fails, and small pages stay */
#endif

#define HUGE_BYTES ((size_t)RESERVE_REGION_BYTES)
/* Slots that are prefaulted: enough for a thirtieth of a second at two million inserts per second. */
#define SLOTS_AHEAD 65536u
/* Unmapping this much memory, page by page, may take milliseconds. */
#define SLOW_BYTES ((size_t)8 << 20)

static void *map_pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Maps whole huge pages: one more than needed, and unmaps what lies outside the aligned part. */
static char *map_aligned(size_t bytes)
{
    char *memory = map_pages(bytes + HUGE_BYTES);
    if (!memory)
        return NULL;
    size_t before = (size_t)(-(uintptr_t)memory & (HUGE_BYTES - 1));
    if (before)
        munmap(memory, before);
    munmap(memory + before + bytes, HUGE_BYTES - before);
    return memory + before;
}

static char *map_whole(size_t bytes)
{
    char *memory = map_aligned(bytes);
    if (memory)
        madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

uint8_t *reserve_region_map(void)
{
    return (uint8_t *)map_whole(HUGE_BYTES);
}

/* ---- prefaulting: a thread touches memory before the core thread needs it. Finding and clearing a huge page sometimes takes the
 * kernel milliseconds, in which the core thread would serve nobody. There is one such thread in the process, started when it is
 * first needed. */

#define HINTS 256u
/* Regions that are ready: a heap takes one in two milliseconds at two million inserts of 400 B per second. They are memory that nobody
 * uses yet. */
#define REGIONS 2u

struct hint {
    _Atomic(char *) memory; /* NULL: free */
    size_t bytes;           /* 0: small pages become the huge page at `memory` */
};

static struct {
    pthread_once_t once;
    bool works; /* the thread runs */
    sem_t given;
    pthread_mutex_t giving;   /* several brokers may be in one process; nobody waits for this lock */
    struct hint hints[HINTS]; /* ring */
    uint32_t next;
    _Atomic(uint8_t *) ready[REGIONS];
    atomic_bool wanted; /* a region was taken: prepare more */
} all = {.once = PTHREAD_ONCE_INIT, .giving = PTHREAD_MUTEX_INITIALIZER};

/* False: no thread can be started. */
static bool start_detached(void *(*run)(void *), void *argument)
{
    pthread_attr_t detached;
    pthread_t thread;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    bool ok = pthread_create(&thread, &detached, run, argument) == 0;
    pthread_attr_destroy(&detached);
    return ok;
}

/* In pieces: another thread that maps or unmaps memory at the same time waits for at most one piece. */
static void populate(char *memory, size_t bytes)
{
    if (bytes == 0 && madvise(memory, HUGE_BYTES, MADV_HUGEPAGE) == 0)
        madvise(memory, HUGE_BYTES, MADV_COLLAPSE);
    for (size_t done = 0; done < bytes; done += RESERVE_REGION_BYTES) {
        size_t left = bytes - done;
        if (madvise(memory + done, left < RESERVE_REGION_BYTES ? left : RESERVE_REGION_BYTES, MADV_POPULATE_WRITE) != 0)
            return;
    }
}

static void prepare_regions(void)
{
    for (uint32_t i = 0; i < REGIONS; i++) {
        if (atomic_load_explicit(&all.ready[i], memory_order_relaxed))
            continue;
        uint8_t *region = reserve_region_map();
        if (!region)
            return;
        populate((char *)region, RESERVE_REGION_BYTES);
        atomic_store_explicit(&all.ready[i], region, memory_order_release);
    }
}

static void *prefault_thread(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "prefault");
    for (uint32_t at = 0;;) {
        while (sem_wait(&all.given) != 0) {
        }
        struct hint *hint = &all.hints[at % HINTS];
        char *memory = atomic_load_explicit(&hint->memory, memory_order_acquire);
        if (memory) {
            populate(memory, hint->bytes);
            atomic_store_explicit(&hint->memory, NULL, memory_order_release);
            at++;
        }
        if (atomic_exchange(&all.wanted, false))
            prepare_regions();
    }
    return NULL;
}

static void start(void)
{
    all.works = sem_init(&all.given, 0, 0) == 0 && start_detached(prefault_thread, NULL);
}

/* Asks for pages to be prefaulted; bytes as in struct hint. Only a hint: a page that was not prefaulted comes when it is touched. Does
 * not wait; the memory may be unmapped at any time. */
static void prefault_ahead(void *memory, size_t bytes)
{
    pthread_once(&all.once, start);
    if (!all.works || pthread_mutex_trylock(&all.giving) != 0)
        return;
    struct hint *hint = &all.hints[all.next % HINTS];
    if (!atomic_load_explicit(&hint->memory,
                              memory_order_acquire)) { /* otherwise the thread is behind: skip this hint */
        hint->bytes = bytes;
        atomic_store_explicit(&hint->memory, memory, memory_order_release);
        all.next++;
        sem_post(&all.given);
    }
    pthread_mutex_unlock(&all.giving);
}

uint8_t *reserve_region(void)
{
    pthread_once(&all.once, start);
    uint8_t *region = NULL;
    for (uint32_t i = 0; i < REGIONS && !region; i++)
        region = atomic_exchange_explicit(&all.ready[i], NULL, memory_order_acquire);
    if (all.works && !atomic_exchange(&all.wanted, true))
        sem_post(&all.given);
    return region;
}

/* ---- slot arrays */

static size_t round_up(size_t bytes)
{
    return (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
}

/* Returns where in its first huge page a mapping begins. The start differs between arrays: arrays that fill at the same pace
 * would otherwise all need their next page in the same insert, and a huge page takes a millisecond or two on some machines. */
static size_t phase_of(const char *memory)
{
    return ((uintptr_t)memory / HUGE_BYTES * 37 % 112) * 4096;
}

/* Maps one huge page more than needed: the first one is left to small pages, which is all that a small table ever touches, until
 * they are all in use. */
static void *map_huge(size_t bytes, bool sparing)
{
    size_t whole = round_up(bytes) + HUGE_BYTES;
    char *memory = map_aligned(whole);
    if (!memory)
        return NULL;
    madvise(memory, sparing ? whole : HUGE_BYTES, MADV_NOHUGEPAGE);
    if (!sparing)
        madvise(memory + HUGE_BYTES, whole - HUGE_BYTES, MADV_HUGEPAGE);
    return memory + phase_of(memory);
}

bool reserve_has_room(size_t bytes)
{
    void *memory = map_pages(bytes);
    if (memory)
        munmap(memory, bytes);
    return memory != NULL;
}

static _Thread_local struct reserve_group *open_group;

static void *need_address(void *memory, size_t bytes)
{
    if (!memory) {
        fprintf(stderr,
                "out of memory: no address space for %zu bytes of a table, and this process ends: lower max_size, or "
                "raise the limit (ulimit -v)\n",
                bytes);
        _Exit(1);
    }
    return memory;
}

void *reserve_map_dense(size_t bytes)
{
    return need_address(bytes < HUGE_BYTES ? map_pages(bytes) : map_whole(round_up(bytes)), bytes);
}

void reserve_unmap_dense(void *memory, size_t bytes)
{
    munmap(memory, bytes < HUGE_BYTES ? bytes : round_up(bytes));
}

void *reserve_map(size_t bytes)
{
    struct reserve_group *group = open_group;
    void *memory = NULL;
    if (bytes < SIZE_MAX - 4 * HUGE_BYTES)
        memory = bytes < HUGE_BYTES ? map_pages(bytes) : map_huge(bytes, group && group->sparing);
    need_address(memory, bytes);
    if (group)
        group->bytes += bytes;
    if (bytes >= HUGE_BYTES && group && !group->sparing && group->n < RESERVE_GROUP_MAPS) {
        group->maps[group->n].memory = memory;
        group->maps[group->n++].bytes = bytes;
    }
    return memory;
}

void reserve_group_begin(struct reserve_group *group)
{
    open_group = group;
}

void reserve_group_end(uint32_t capacity)
{
    open_group->slot_bytes = (uint32_t)((open_group->bytes + capacity - 1) / capacity);
    open_group = NULL;
}

void reserve_group_ahead(struct reserve_group *group, uint32_t used, uint32_t capacity)
{
    double share = ((double)used + SLOTS_AHEAD) / capacity;
    for (uint32_t i = 0; i < group->n; i++) {
        size_t bytes = group->maps[i].bytes, want = share < 1 ? (size_t)((double)bytes * share) : bytes;
        size_t before = (uintptr_t)group->maps[i].memory % HUGE_BYTES;
        if (!group->maps[i].whole && (double)bytes * used / capacity >= (double)(HUGE_BYTES - before)) {
            group->maps[i].whole = true;
            prefault_ahead(group->maps[i].memory - before, 0);
        }
        /* To the end of a huge page. */
        uintptr_t end = ((uintptr_t)group->maps[i].memory + want + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1);
        size_t to = end - (uintptr_t)group->maps[i].memory;
        if (to > bytes)
            to = bytes;
        if (to <= group->maps[i].prefaulted)
            continue;
        prefault_ahead(group->maps[i].memory + group->maps[i].prefaulted, to - group->maps[i].prefaulted);
        group->maps[i].prefaulted = to;
    }
}

struct unmapping {
    void *memory;
    size_t bytes;
};

static void *unmap_thread(void *arg)
{
    struct unmapping *self = arg;
    pthread_setname_np(pthread_self(), "unmap");
    /* In pieces: another thread that maps memory at the same time waits for at most one piece. */
    for (size_t at = 0; at < self->bytes; at += SLOW_BYTES) {
        size_t left = self->bytes - at;
        madvise((char *)self->memory + at, left < SLOW_BYTES ? left : SLOW_BYTES, MADV_DONTNEED);
    }
    munmap(self->memory, self->bytes);
    free(self);
    return NULL;
}

void reserve_unmap(void *memory, size_t bytes)
{
    if (!memory)
        return;
    if (bytes < HUGE_BYTES) {
        munmap(memory, bytes);
        return;
    }
    void *first = (void *)((uintptr_t)memory & ~(uintptr_t)(HUGE_BYTES - 1));
    size_t whole = round_up(bytes) + HUGE_BYTES;
    if (whole >= SLOW_BYTES) {
        struct unmapping *task = need_alloc(sizeof *task);
        *task = (struct unmapping){first, whole};
        if (start_detached(unmap_thread, task))
            return;
        free(task);
    }
    munmap(first, whole);
}
