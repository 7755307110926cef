#include "broker/store/prefault.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; elsewhere it fails, and nothing is prefaulted */
#endif

#define PLACES 256u
#define REGIONS 8u

struct place {
    _Atomic(char *) memory; /* NULL: free */
    size_t bytes;
};

static struct {
    pthread_once_t once;
    bool works; /* the thread runs */
    sem_t given;
    pthread_mutex_t giving;      /* several brokers may be in one process; nobody waits for this lock */
    struct place places[PLACES]; /* ring */
    uint32_t next;
    _Atomic(uint8_t *) ready[REGIONS];
    atomic_bool wanted; /* a region was taken: prepare more */
} all = {.once = PTHREAD_ONCE_INIT, .giving = PTHREAD_MUTEX_INITIALIZER};

/* In pieces: another thread that maps or unmaps memory at the same time waits for at most one piece. */
static void populate(char *memory, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += PREFAULT_REGION_BYTES) {
        size_t left = bytes - done;
        if (madvise(memory + done, left < PREFAULT_REGION_BYTES ? left : PREFAULT_REGION_BYTES, MADV_POPULATE_WRITE) !=
            0)
            return;
    }
}

static void prepare_regions(void)
{
    for (uint32_t i = 0; i < REGIONS; i++) {
        if (atomic_load_explicit(&all.ready[i], memory_order_relaxed))
            continue;
        uint8_t *region = prefault_region_map();
        if (!region)
            return;
        populate((char *)region, PREFAULT_REGION_BYTES);
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
        struct place *place = &all.places[at % PLACES];
        char *memory = atomic_load_explicit(&place->memory, memory_order_acquire);
        if (memory) {
            populate(memory, place->bytes);
            atomic_store_explicit(&place->memory, NULL, memory_order_release);
            at++;
        }
        if (atomic_exchange(&all.wanted, false))
            prepare_regions();
    }
    return NULL;
}

static void start(void)
{
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    all.works = sem_init(&all.given, 0, 0) == 0 && pthread_create(&thread, &detached, prefault_thread, NULL) == 0;
    pthread_attr_destroy(&detached);
}

void prefault_ahead(void *memory, size_t bytes)
{
    pthread_once(&all.once, start);
    if (!all.works || bytes == 0 || pthread_mutex_trylock(&all.giving) != 0)
        return;
    struct place *place = &all.places[all.next % PLACES];
    if (!atomic_load_explicit(&place->memory,
                              memory_order_acquire)) { /* otherwise the thread is behind: skip this hint */
        place->bytes = bytes;
        atomic_store_explicit(&place->memory, memory, memory_order_release);
        all.next++;
        sem_post(&all.given);
    }
    pthread_mutex_unlock(&all.giving);
}

uint8_t *prefault_region_map(void)
{
    /* Twice the size, then trimmed to alignment. */
    uint8_t *raw = mmap(NULL, 2 * PREFAULT_REGION_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    size_t before = (size_t)(-(uintptr_t)raw & (PREFAULT_REGION_BYTES - 1)), after = PREFAULT_REGION_BYTES - before;
    if (before)
        munmap(raw, before);
    if (after)
        munmap(raw + before + PREFAULT_REGION_BYTES, after);
    madvise(raw + before, PREFAULT_REGION_BYTES, MADV_HUGEPAGE);
    return raw + before;
}

uint8_t *prefault_region(void)
{
    pthread_once(&all.once, start);
    uint8_t *region = NULL;
    for (uint32_t i = 0; i < REGIONS && !region; i++)
        region = atomic_exchange_explicit(&all.ready[i], NULL, memory_order_acquire);
    if (all.works && !atomic_exchange(&all.wanted, true))
        sem_post(&all.given);
    return region;
}
