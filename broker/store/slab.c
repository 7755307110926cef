#include "broker/store/slab.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/queue.h>

#include "broker/store/reserve.h"
#include "proto/base/need.h"

#define SLAB_BYTES 65536u
#define REGION_BYTES RESERVE_REGION_BYTES
#define SLABS_PER_REGION (REGION_BYTES / SLAB_BYTES)
#define SMALL_LIMIT 1024u
#define SMALL_CLASSES (SMALL_LIMIT / 16)
#define SLAB_CLASSES (SMALL_CLASSES + 32)
#define SPARE_SLABS 64u
/* A heap with this many regions is considered to be growing. */
#define GROWING_REGIONS 8u

/* The header of a slab, at the start of its 64 KiB. Free places are chained through their first word. */
struct slab {
    LIST_ENTRY(slab) link; /* in its class's list of slabs with room, or in the list of empty slabs */
    void *free;
    struct region *region;
    uint32_t object_bytes;
    uint32_t class;
    uint32_t used;
    uint32_t untouched; /* offset of the first place that was never used */
    uint32_t part; /* bytes of the slab that each object takes: with its share of the head and of the rest at the end */
    bool listed;
};
LIST_HEAD(slab_list, slab);

struct region {
    LIST_ENTRY(region) link;
    uint8_t *memory;
    uint32_t used;  /* slabs in use or spare */
    uint32_t empty; /* spare slabs among them */
};

struct slab_heap {
    struct slab_bytes bytes; /* first */
    bool ahead;
    struct slab_list room[SLAB_CLASSES], spare;
    uint32_t n_spare;
    LIST_HEAD(region_list, region) regions;
    uint32_t n_regions;
};

_Static_assert(sizeof(struct slab) <= 64, "the slab header is one line");

static uint32_t class_of(size_t size)
{
    if (size <= SMALL_LIMIT)
        return size ? (uint32_t)((size + 15) / 16 - 1) : 0;
    return SMALL_CLASSES + slab_step(size);
}

static uint32_t class_bytes(uint32_t class)
{
    if (class < SMALL_CLASSES)
        return (class + 1) * 16;
    return slab_step_bytes(class - SMALL_CLASSES);
}

static void list_push(struct slab_list *list, struct slab *slab)
{
    LIST_INSERT_HEAD(list, slab, link);
    slab->listed = true;
}

static void list_drop(struct slab *slab)
{
    LIST_REMOVE(slab, link);
    slab->listed = false;
}

static struct region *region_new(struct slab_heap *self)
{
    /* A growing heap takes regions that were prefaulted. */
    uint8_t *memory = self->ahead && self->n_regions >= GROWING_REGIONS ? reserve_region() : NULL;
    if (!memory && !(memory = reserve_region_map()))
        return NULL;
    struct region *region = need_alloc(sizeof *region);
    region->memory = memory;
    LIST_INSERT_HEAD(&self->regions, region, link);
    self->n_regions++;
    return region;
}

static void region_drop(struct slab_heap *self, struct region *region)
{
    for (uint32_t i = 0; i < SLABS_PER_REGION; i++) {
        struct slab *slab = (struct slab *)(void *)(region->memory + (size_t)i * SLAB_BYTES);
        list_drop(slab);
        self->n_spare--;
    }
    LIST_REMOVE(region, link);
    munmap(region->memory, REGION_BYTES);
    free(region);
    self->n_regions--;
}

static bool region_fill_spare(struct slab_heap *self)
{
    struct region *region = region_new(self);
    if (!region)
        return false;
    for (uint32_t i = SLABS_PER_REGION; i-- > 0;) {
        struct slab *slab = (struct slab *)(void *)(region->memory + (size_t)i * SLAB_BYTES);
        slab->region = region;
        list_push(&self->spare, slab);
        self->n_spare++;
    }
    region->used = region->empty = SLABS_PER_REGION;
    return true;
}

static struct slab *slab_new(struct slab_heap *self, uint32_t class)
{
    if (LIST_EMPTY(&self->spare) && !region_fill_spare(self))
        return NULL;
    struct slab *slab = LIST_FIRST(&self->spare);
    list_drop(slab);
    self->n_spare--;
    slab->region->empty--;
    slab->free = NULL;
    slab->object_bytes = class_bytes(class);
    slab->class = class;
    slab->used = 0;
    slab->untouched = 64;
    slab->part = SLAB_BYTES / ((SLAB_BYTES - 64) / slab->object_bytes);
    self->bytes.reserved += SLAB_BYTES;
    list_push(&self->room[class], slab);
    return slab;
}

static void slab_retire(struct slab_heap *self, struct slab *slab)
{
    if (slab->listed)
        list_drop(slab);
    self->bytes.reserved -= SLAB_BYTES;
    list_push(&self->spare, slab);
    self->n_spare++;
    struct region *region = slab->region;
    region->empty++;
    if (region->empty == SLABS_PER_REGION && self->n_spare > SPARE_SLABS)
        region_drop(self, region);
}

struct slab_heap *slab_heap_new(bool ahead)
{
    struct slab_heap *self = need_alloc(sizeof *self);
    self->ahead = ahead;
    return self;
}

void slab_heap_destroy(struct slab_heap **self)
{
    if (!*self)
        return;
    while (!LIST_EMPTY(&(*self)->regions)) {
        struct region *region = LIST_FIRST(&(*self)->regions);
        LIST_REMOVE(region, link);
        munmap(region->memory, REGION_BYTES);
        free(region);
    }
    free(*self);
    *self = NULL;
}

void *slab_alloc(struct slab_heap *self, size_t size)
{
    assert(size <= SLAB_MAX_BYTES);
    uint32_t class = class_of(size);
    struct slab *slab = LIST_FIRST(&self->room[class]);
    if (!slab && !(slab = slab_new(self, class)))
        return NULL;
    void *object = slab->free;
    if (object) {
        slab->free = *(void **)object;
    } else {
        object = (uint8_t *)slab + slab->untouched;
        slab->untouched += slab->object_bytes;
    }
    slab->used++;
    self->bytes.used += slab->part;
    if (!slab->free && slab->untouched + slab->object_bytes > SLAB_BYTES)
        list_drop(slab);
    return object;
}

uint32_t slab_fill(const void *object)
{
    const struct slab *slab = (const struct slab *)((uintptr_t)object & ~(uintptr_t)(SLAB_BYTES - 1));
    return slab->used * slab->part;
}

void slab_free(struct slab_heap *self, void *object)
{
    struct slab *slab = (struct slab *)((uintptr_t)object & ~(uintptr_t)(SLAB_BYTES - 1));
    *(void **)object = slab->free;
    slab->free = object;
    slab->used--;
    self->bytes.used -= slab->part;
    if (slab->used == 0)
        slab_retire(self, slab);
    else if (!slab->listed)
        list_push(&self->room[slab->class], slab);
}
