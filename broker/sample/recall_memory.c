/* The memory of samples: its lists, its budget, and how it lets go. */
#include <stdlib.h>

#include "broker/sample/recall_impl.h"

#define SPARES 256u
/* What is let go of at once; more than this goes slice by slice, in a chore. */
#define REFS_AT_ONCE 2048u
#define REFS_PER_STEP 256u
/* Arrays of spare ones are kept up to this size. */
#define SPARE_ITEMS 1024u
#define SPARE_REFS 4096u

/* ---- lists ---- */

void recall_link(struct recall *self, struct owner *owner, struct memory *memory)
{
    memory->owner = owner;
    memory->newer = memory->after = NULL;
    memory->older = self->newest;
    *(self->newest ? &self->newest->newer : &self->oldest) = memory;
    self->newest = memory;
    memory->before = owner->last;
    *(owner->last ? &owner->last->after : &owner->first) = memory;
    owner->last = memory;
    owner->count++;
    if (memory->id > owner->highest)
        owner->highest = memory->id;
    self->bytes += memory->bytes;
}

void recall_unlink(struct recall *self, struct memory *memory)
{
    struct owner *owner = memory->owner;
    *(memory->older ? &memory->older->newer : &self->oldest) = memory->newer;
    *(memory->newer ? &memory->newer->older : &self->newest) = memory->older;
    *(memory->before ? &memory->before->after : &owner->first) = memory->after;
    *(memory->after ? &memory->after->before : &owner->last) = memory->before;
    owner->count--;
    self->bytes -= memory->bytes;
}

static void owner_link(struct recall *self, struct owner *owner)
{
    owner->next = NULL;
    owner->prev = self->last_owner;
    *(self->last_owner ? &self->last_owner->next : &self->first_owner) = owner;
    self->last_owner = owner;
}

static void owner_unlink(struct recall *self, struct owner *owner)
{
    *(owner->prev ? &owner->prev->next : &self->first_owner) = owner->next;
    *(owner->next ? &owner->next->prev : &self->last_owner) = owner->prev;
}

void recall_heard(struct recall *self, struct owner *owner)
{
    owner->heard_ns = self->broker->loop.now_ns;
    if (owner == self->last_owner)
        return;
    owner_unlink(self, owner);
    owner_link(self, owner);
}

struct memory *recall_find(const struct owner *owner, uint64_t id)
{
    if (!owner || id > owner->highest)
        return NULL;
    struct memory *memory = owner->last;
    while (memory && memory->id != id)
        memory = memory->before;
    return memory;
}

/* ---- letting go ---- */

static void memory_free(struct memory *memory)
{
    picks_fini(&memory->picks);
    free(memory->block);
    free(memory);
}

void recall_recycle(struct recall *self, struct memory *memory)
{
    if (self->n_spare == SPARES) {
        memory_free(memory);
        return;
    }
    if (memory->picks.capacity > SPARE_ITEMS || memory->picks.refs_capacity > SPARE_REFS)
        picks_fini(&memory->picks);
    if (memory->room > (size_t)SPARE_ITEMS * KEY_BYTES) {
        free(memory->block);
        memory->block = NULL;
        memory->room = 0;
    }
    memory->newer = self->spare;
    self->spare = memory;
    self->n_spare++;
}

static bool bury_step(struct chore *chore)
{
    struct recall *self = (struct recall *)chore;
    struct memory *memory = self->dead;
    struct picks *picks = &memory->picks;
    for (uint32_t i = 0; i < REFS_PER_STEP && picks->n_refs; i++)
        store_release(&self->broker->store, picks->refs[--picks->n_refs]);
    if (picks->n_refs == 0) {
        self->dead = memory->newer;
        picks_clear(picks, self->broker);
        recall_recycle(self, memory);
    }
    self->burying = self->dead != NULL;
    return self->burying;
}

/* It is in no list any more. */
static void bury(struct recall *self, struct memory *memory)
{
    if (self->instant_ns != self->broker->loop.now_ns) {
        self->instant_ns = self->broker->loop.now_ns;
        self->at_once = REFS_AT_ONCE;
    }
    uint32_t refs = memory->holds ? memory->picks.n_refs : 0;
    if (refs <= self->at_once) {
        self->at_once -= refs;
        picks_clear(&memory->picks, self->broker);
        recall_recycle(self, memory);
        return;
    }
    memory->newer = self->dead;
    self->dead = memory;
    if (!self->burying)
        chores_add(&self->broker->loop.chores, &self->chore);
    self->burying = true;
}

void recall_drop(struct recall *self, struct memory *memory)
{
    EFFECT(&self->broker->loop, forget, memory->owner->client, memory->id);
    if (!memory->answered)
        memory->table->stats.orphaned_picks += memory->holds ? memory->picks.n : memory->n;
    recall_unlink(self, memory);
    bury(self, memory);
}

void recall_drop_owner(struct recall *self, struct owner *owner)
{
    for (struct memory *memory = owner->first, *after; memory; memory = after) {
        after = memory->after;
        recall_drop(self, memory);
    }
    owner_unlink(self, owner);
    idmap_remove(&self->owners, owner->client);
    self->n_owners--;
    free(owner);
}

struct owner *recall_owner(const struct recall *self, uint64_t client)
{
    return client ? idmap_get(&self->owners, client) : NULL;
}

struct owner *recall_owner_make(struct recall *self, uint64_t client)
{
    struct owner *owner = recall_owner(self, client);
    if (owner || !client)
        return owner;
    if (self->n_owners >= RECALL_CLIENTS)
        recall_drop_owner(self, self->first_owner);
    owner = calloc(1, sizeof *owner);
    if (!owner || !idmap_put(&self->owners, client, owner)) {
        free(owner);
        return NULL;
    }
    owner->client = client;
    owner->heard_ns = self->broker->loop.now_ns;
    owner_link(self, owner);
    self->n_owners++;
    return owner;
}

struct memory *recall_memory_new(struct recall *self)
{
    struct memory *memory = self->spare;
    if (!memory)
        return calloc(1, sizeof *memory);
    self->spare = memory->newer;
    self->n_spare--;
    return memory;
}

/* ---- life ---- */

struct recall *recall_new(struct broker *broker)
{
    struct recall *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->chore.step = bury_step;
    self->broker = broker;
    self->budget = (uint64_t)broker->config->memory_limit / RECALL_SHARE;
    self->at_once = REFS_AT_ONCE;
    return self;
}

void recall_destroy(struct broker *broker)
{
    struct recall *self = broker->samples.recall;
    if (!self)
        return;
    struct memory *const lists[] = {self->oldest, self->dead, self->spare};
    for (uint32_t i = 0; i < 3; i++)
        for (struct memory *memory = lists[i], *next; memory; memory = next) {
            next = memory->newer;
            picks_clear(&memory->picks, broker);
            memory_free(memory);
        }
    while (self->first_owner) {
        struct owner *owner = self->first_owner;
        self->first_owner = owner->next;
        free(owner);
    }
    idmap_fini(&self->owners);
    free(self);
    broker->samples.recall = NULL;
}
