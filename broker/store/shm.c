#include "broker/store/shm.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "broker/store/reserve.h"
#include "broker/store/slab.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"

#define LINE_BYTES 64u
#define PAGE_BYTES 4096u
#define UNIT_BYTES (4u << 20)
/* Small objects: up to the largest size of 72 classes (slab.h). */
#define SMALL_LEAST 1025u
#define SMALL_MOST (512u << 10)
#define SHM_CLASSES 72u
/* A large object of 513 KiB takes a whole unit of the file, though not of the memory. */
#define FILE_FACTOR 8u
/* Pages without objects that are kept for the next ones: an eighth of the used ones, and this part of the room. They count as
 * memory, which others then lack. */
#define SPARE_SHARE 64u
/* Pages of small objects are made so many bytes at a time. */
#define STEP_BYTES (256u << 10)

enum unit_kind {
    UNIT_FREE,
    UNIT_SMALL,
    UNIT_LARGE,
    UNIT_REST
}; /* UNIT_REST: of the large object in a unit before it */

struct unit {
    enum unit_kind kind;
    uint32_t class;      /* of its small objects; of a large one: its units */
    uint32_t used;       /* objects; of a large one: its pages */
    uint32_t fresh;      /* objects from this one on were never used */
    uint32_t free;       /* the first free object, plus 1; 0: none */
    uint32_t next, prev; /* units of the class that have room; 0: none */
    uint64_t present;    /* bytes, from its start, whose pages may be there */
};

/* Before each object, in the file. */
struct line {
    _Atomic uint64_t stamp;
    uint32_t next; /* of a free object: the next one, plus 1 */
};

struct shm {
    struct shm_bytes bytes; /* first */
    struct unit *units;     /* unit 0 has the nonce */
    uint32_t n_units;
    uint32_t lowest; /* no unit below is free */
    uint32_t top;    /* no unit from here on was ever used */
    uint32_t room[SHM_CLASSES];
    uint64_t stamp; /* the newest */
    struct memfile file;
};

struct shm *shm_new(uint64_t bytes)
{
    uint64_t units = bytes / UNIT_BYTES * FILE_FACTOR + 64;
    struct memfile file;
    if (units > UINT32_MAX / 2 || !memfile_make(&file, units * UNIT_BYTES))
        return NULL;
    struct shm *self = need_alloc(sizeof *self);
    *self = (struct shm){.n_units = (uint32_t)units, .lowest = 1, .file = file};
    self->units = reserve_map(units * sizeof *self->units);
    rng_system(&self->stamp, sizeof self->stamp); /* a reader who comes too late must not find it in the data */
    return self;
}

void shm_destroy(struct shm **self)
{
    struct shm *shm = *self;
    *self = NULL;
    if (!shm)
        return;
    memfile_fini(&shm->file);
    reserve_unmap(shm->units, shm->n_units * sizeof *shm->units);
    free(shm);
}

const struct memfile *shm_file(const struct shm *self)
{
    return &self->file;
}

/* ---- units ---- */

/* Returns the first of n free units in a row. 0: there are none. */
static uint32_t units_take(struct shm *self, uint32_t n, enum unit_kind kind)
{
    uint32_t run = 0, at = self->lowest;
    for (; at < self->n_units && run < n; at++)
        run = self->units[at].kind == UNIT_FREE ? run + 1 : 0;
    if (run < n)
        return 0;
    uint32_t first = at - n;
    if (first == self->lowest)
        self->lowest = at;
    if (at > self->top)
        self->top = at;
    for (uint32_t i = first; i < at; i++)
        self->units[i].kind = i == first ? kind : UNIT_REST;
    return first;
}

/* Counts pages of a unit as there, or as there no more. */
static void set_present(struct shm *self, struct unit *unit, uint64_t bytes)
{
    self->bytes.reserved += bytes - unit->present;
    unit->present = bytes;
}

/* Makes the pages of a unit up to this byte, if they are not there. False: no memory. */
static bool make_present(struct shm *self, uint32_t at, uint64_t bytes)
{
    struct unit *unit = &self->units[at];
    if (bytes <= unit->present)
        return true;
    if (!memfile_fill(&self->file, (uint64_t)at * UNIT_BYTES + unit->present, bytes - unit->present))
        return false;
    set_present(self, unit, bytes);
    return true;
}

/* Gives back the pages of a unit from this byte on. Should it fail, they are there longer than they are counted. */
static void trim(struct shm *self, uint32_t at, uint64_t bytes)
{
    (void)fallocate(self->file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    (off_t)((uint64_t)at * UNIT_BYTES + bytes), (off_t)(UNIT_BYTES - bytes));
    set_present(self, &self->units[at], bytes);
}

static void units_give_back(struct shm *self, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++)
        self->units[i] = (struct unit){.kind = UNIT_FREE, .present = self->units[i].present};
    if (first < self->lowest)
        self->lowest = first;
    uint64_t most = self->bytes.used + self->bytes.used / 8 + self->file.size / (FILE_FACTOR * SPARE_SHARE);
    for (uint32_t i = self->top; --i > 0 && self->bytes.reserved > most;)
        if (self->units[i].kind == UNIT_FREE && self->units[i].present)
            trim(self, i, 0);
}

static void room_push(struct shm *self, uint32_t at)
{
    struct unit *unit = &self->units[at];
    uint32_t *first = &self->room[unit->class];
    unit->prev = 0;
    unit->next = *first;
    if (*first)
        self->units[*first].prev = at;
    *first = at;
}

static void room_drop(struct shm *self, uint32_t at)
{
    struct unit *unit = &self->units[at];
    if (unit->prev)
        self->units[unit->prev].next = unit->next;
    else
        self->room[unit->class] = unit->next;
    if (unit->next)
        self->units[unit->next].prev = unit->prev;
}

/* The last object of a unit of small ones is gone. */
static void small_give_back(struct shm *self, uint32_t at)
{
    room_drop(self, at);
    units_give_back(self, at, 1);
}

/* ---- objects ---- */

static struct line *line_of(const struct shm *self, uint32_t unit, uint32_t object)
{
    uint64_t size = self->units[unit].kind == UNIT_SMALL ? slab_step_bytes(self->units[unit].class) : 0;
    return (struct line *)(void *)(self->file.memory + (uint64_t)unit * UNIT_BYTES + object * size);
}

/* Stamps an object. The stamp is seen before what is written into the object after it. */
static void *stamp(struct shm *self, struct line *line)
{
    atomic_store_explicit(&line->stamp, ++self->stamp, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return (uint8_t *)line + LINE_BYTES;
}

static bool is_full(const struct unit *unit)
{
    return !unit->free && unit->fresh == UNIT_BYTES / slab_step_bytes(unit->class);
}

static void *alloc_small(struct shm *self, size_t size)
{
    uint32_t class = slab_step(size > SMALL_LEAST ? size : SMALL_LEAST), bytes = slab_step_bytes(class);
    uint32_t at = self->room[class];
    if (!at) {
        if (!(at = units_take(self, 1, UNIT_SMALL)))
            return NULL;
        self->units[at].class = class;
        room_push(self, at);
    }
    struct unit *unit = &self->units[at];
    uint64_t end = ((uint64_t)(unit->fresh + 1) * bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
    if (!unit->free && !make_present(self, at, end)) {
        if (!unit->used)
            small_give_back(self, at);
        return NULL;
    }
    struct line *line = line_of(self, at, unit->free ? unit->free - 1 : unit->fresh);
    if (unit->free)
        unit->free = line->next;
    else
        unit->fresh++;
    unit->used++;
    self->bytes.used += bytes;
    if (is_full(unit))
        room_drop(self, at);
    return stamp(self, line);
}

static void *alloc_large(struct shm *self, size_t size)
{
    uint32_t n = (uint32_t)((size + UNIT_BYTES - 1) / UNIT_BYTES), at = units_take(self, n, UNIT_LARGE);
    if (!at)
        return NULL;
    uint64_t pages = (size + PAGE_BYTES - 1) / PAGE_BYTES, left = pages * PAGE_BYTES;
    for (uint32_t i = at; left; i++) {
        uint64_t bytes = left < UNIT_BYTES ? left : UNIT_BYTES;
        if (!make_present(self, i, bytes)) {
            units_give_back(self, at, n);
            return NULL;
        }
        left -= bytes;
        if (self->units[i].present - bytes > UNIT_BYTES / 8) /* nobody else gets the pages behind it */
            trim(self, i, bytes);
    }
    self->units[at].class = n;
    self->units[at].used = (uint32_t)pages;
    self->bytes.used += pages * PAGE_BYTES;
    return stamp(self, line_of(self, at, 0));
}

void *shm_alloc(struct shm *self, size_t bytes)
{
    size_t size = bytes + LINE_BYTES;
    return size <= SMALL_MOST ? alloc_small(self, size) : size < self->file.size ? alloc_large(self, size) : NULL;
}

void shm_free(struct shm *self, void *object)
{
    uint64_t offset = (uint64_t)((uint8_t *)object - self->file.memory) - LINE_BYTES;
    uint32_t at = (uint32_t)(offset / UNIT_BYTES);
    struct unit *unit = &self->units[at];
    struct line *line = (struct line *)(void *)(self->file.memory + offset);
    atomic_store_explicit(&line->stamp, 0, memory_order_relaxed);
    if (unit->kind == UNIT_LARGE) {
        self->bytes.used -= (uint64_t)unit->used * PAGE_BYTES;
        units_give_back(self, at, unit->class);
        return;
    }
    uint32_t bytes = slab_step_bytes(unit->class);
    bool was_full = is_full(unit);
    line->next = unit->free;
    unit->free = (uint32_t)(offset % UNIT_BYTES / bytes) + 1;
    self->bytes.used -= bytes;
    if (was_full)
        room_push(self, at);
    if (--unit->used == 0)
        small_give_back(self, at);
}

struct shm_place shm_place(const struct shm *self, const void *object)
{
    const struct line *line = (const struct line *)(const void *)((const uint8_t *)object - LINE_BYTES);
    return (struct shm_place){.at = (uint64_t)((const uint8_t *)object - self->file.memory),
                              .stamp = atomic_load_explicit(&line->stamp, memory_order_relaxed)};
}
