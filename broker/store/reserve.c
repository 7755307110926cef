#include "broker/store/reserve.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "broker/store/prefault.h"

#define HUGE_BYTES ((size_t)2 << 20)
/* Slots that are prefaulted: enough for a thirtieth of a second at two million inserts per second. */
#define SLOTS_AHEAD 65536u
/* Unmapping this much memory, page by page, may take milliseconds. */
#define SLOW_BYTES ((size_t)8 << 20)

static void *map_pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static size_t round_up(size_t bytes)
{
    return (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
}

/* Returns where in its first huge page a mapping begins. The start differs between arrays: arrays that fill at the same pace
 * would otherwise all need their next page in the same insert, and a huge page takes a millisecond or two on some machines. */
static size_t phase_of(const char *memory)
{
    return ((uintptr_t)memory / HUGE_BYTES * 37 % 448) * 4096;
}

/* Maps two huge pages more than needed and unmaps what lies outside the aligned part. The first huge page is left to small
 * pages, which is all that a small table ever touches. */
static void *map_huge(size_t bytes, bool sparing)
{
    size_t whole = round_up(bytes) + HUGE_BYTES;
    char *memory = map_pages(whole + HUGE_BYTES);
    if (!memory)
        return NULL;
    size_t before = (size_t)(-(uintptr_t)memory & (HUGE_BYTES - 1));
    if (before)
        munmap(memory, before);
    if (HUGE_BYTES - before)
        munmap(memory + before + whole, HUGE_BYTES - before);
    memory += before;
    madvise(memory, sparing ? whole : HUGE_BYTES, MADV_NOHUGEPAGE);
    if (!sparing)
        madvise(memory + HUGE_BYTES, whole - HUGE_BYTES, MADV_HUGEPAGE);
    return memory + phase_of(memory);
}

static _Thread_local struct reserve_group *open_group;

void *reserve_map(size_t bytes)
{
    if (bytes > SIZE_MAX - 4 * HUGE_BYTES)
        return NULL;
    struct reserve_group *group = open_group;
    void *memory = bytes < HUGE_BYTES ? map_pages(bytes) : map_huge(bytes, group && group->sparing);
    if (group)
        group->bytes += bytes;
    if (memory && bytes >= HUGE_BYTES && group && !group->sparing && group->n < RESERVE_GROUP_MAPS) {
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

/* False: no thread can be started. */
static bool unmap_elsewhere(void *memory, size_t bytes)
{
    struct unmapping *self = malloc(sizeof *self);
    if (!self)
        return false;
    *self = (struct unmapping){memory, bytes};
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    bool ok = pthread_create(&thread, &detached, unmap_thread, self) == 0;
    pthread_attr_destroy(&detached);
    if (!ok)
        free(self);
    return ok;
}

void reserve_unmap(void *memory, size_t bytes)
{
    if (!memory)
        return;
    if (bytes < HUGE_BYTES) {
        munmap(memory, bytes);
        return;
    }
    void *start = (void *)((uintptr_t)memory & ~(uintptr_t)(HUGE_BYTES - 1));
    size_t whole = round_up(bytes) + HUGE_BYTES;
    if (whole < SLOW_BYTES || !unmap_elsewhere(start, whole))
        munmap(start, whole);
}
