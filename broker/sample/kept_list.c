#include "broker/sample/kept_list.h"

#include <stddef.h>
#include <stdlib.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/sample/samples.h"

#define CLIENTS_MOST 65536u
#define MEMORY_SHARE 16 /* kept samples may take a sixteenth of memory_limit */
/* Chunk references that are released at once; more are released in slices, by a chore. */
#define REFS_AT_ONCE 2048u
#define REFS_PER_STEP 256u
/* Spare samples, and the largest arrays that they keep. */
#define SPARES 256u
#define SPARE_ITEMS 1024u
#define SPARE_REFS 4096u

/* ---- lists ---- */

void kept_list_add(struct kept_list *self, struct kept_client *client, struct kept_sample *sample)
{
    sample->client = client;
    sample->newer = sample->after = NULL;
    sample->older = self->newest;
    *(self->newest ? &self->newest->newer : &self->oldest) = sample;
    self->newest = sample;
    sample->before = client->last;
    *(client->last ? &client->last->after : &client->first) = sample;
    client->last = sample;
    client->count++;
    if (sample->info.id > client->highest)
        client->highest = sample->info.id;
    self->bytes += sample->bytes;
    self->samples->store->overhead += sample->own_bytes;
}

void kept_list_remove(struct kept_list *self, struct kept_sample *sample)
{
    struct kept_client *client = sample->client;
    *(sample->older ? &sample->older->newer : &self->oldest) = sample->newer;
    *(sample->newer ? &sample->newer->older : &self->newest) = sample->older;
    *(sample->before ? &sample->before->after : &client->first) = sample->after;
    *(sample->after ? &sample->after->before : &client->last) = sample->before;
    client->count--;
    self->bytes -= sample->bytes;
    self->samples->store->overhead -= sample->own_bytes;
}

struct kept_sample *kept_list_find(const struct kept_client *client, uint64_t id)
{
    if (!client || id > client->highest)
        return NULL;
    struct kept_sample *sample = client->last;
    while (sample && sample->info.id != id)
        sample = sample->before;
    return sample;
}

/* ---- clients ---- */

static void client_link(struct kept_list *self, struct kept_client *client)
{
    client->next = NULL;
    client->prev = self->last_client;
    *(self->last_client ? &self->last_client->next : &self->first_client) = client;
    self->last_client = client;
}

static void client_unlink(struct kept_list *self, struct kept_client *client)
{
    *(client->prev ? &client->prev->next : &self->first_client) = client->next;
    *(client->next ? &client->next->prev : &self->last_client) = client->prev;
}

void kept_list_touch(struct kept_list *self, struct kept_client *client)
{
    client->heard_ns = self->samples->loop->now_ns;
    if (client == self->last_client)
        return;
    client_unlink(self, client);
    client_link(self, client);
}

struct kept_client *kept_list_client(const struct kept_list *self, uint64_t client)
{
    return client ? idmap_get(&self->clients, client) : NULL;
}

struct kept_client *kept_list_make_client(struct kept_list *self, uint64_t id)
{
    struct kept_client *client = kept_list_client(self, id);
    if (client || !id)
        return client;
    if (self->n_clients >= CLIENTS_MOST)
        kept_list_drop_client(self, self->first_client);
    client = calloc(1, sizeof *client);
    if (!client)
        return NULL;
    idmap_put(&self->clients, id, client);
    client->client = id;
    client->heard_ns = self->samples->loop->now_ns;
    client_link(self, client);
    self->n_clients++;
    return client;
}

/* ---- memory ---- */

struct kept_sample *kept_list_new(struct kept_list *self)
{
    struct kept_sample *sample = self->spare;
    if (!sample)
        return calloc(1, sizeof *sample);
    self->spare = sample->newer;
    self->n_spare--;
    return sample;
}

static void sample_free(struct kept_sample *sample)
{
    picks_fini(&sample->picks);
    free(sample->block);
    free(sample);
}

void kept_list_recycle(struct kept_list *self, struct kept_sample *sample)
{
    if (self->n_spare == SPARES) {
        sample_free(sample);
        return;
    }
    if (sample->picks.capacity > SPARE_ITEMS || sample->picks.refs_capacity > SPARE_REFS)
        picks_fini(&sample->picks);
    if (sample->room > (size_t)SPARE_ITEMS * KEPT_ITEM_BYTES) {
        free(sample->block);
        sample->block = NULL;
        sample->room = 0;
    }
    sample->newer = self->spare;
    self->spare = sample;
    self->n_spare++;
}

/* ---- dropping ---- */

static bool release_step(struct chore *chore)
{
    struct kept_list *self = (struct kept_list *)(void *)((char *)chore - offsetof(struct kept_list, chore));
    struct kept_sample *sample = self->dropped;
    struct picks *picks = &sample->picks;
    for (uint32_t i = 0; i < REFS_PER_STEP && picks->n_refs; i++)
        store_release(self->samples->store, picks->refs[--picks->n_refs]);
    if (picks->n_refs == 0) {
        self->dropped = sample->newer;
        picks_clear(picks, self->samples);
        kept_list_recycle(self, sample);
    }
    self->releasing = self->dropped != NULL;
    return self->releasing;
}

/* Releases a sample that is in no list any more, at once or in slices. */
static void release(struct kept_list *self, struct kept_sample *sample)
{
    struct loop *loop = self->samples->loop;
    if (self->now_ns != loop->now_ns) {
        self->now_ns = loop->now_ns;
        self->releases_left = REFS_AT_ONCE;
    }
    uint32_t refs = sample->info.holds ? sample->picks.n_refs : 0;
    if (refs <= self->releases_left) {
        self->releases_left -= refs;
        picks_clear(&sample->picks, self->samples);
        kept_list_recycle(self, sample);
        return;
    }
    sample->newer = self->dropped;
    self->dropped = sample;
    if (!self->releasing)
        chores_add(&loop->chores, &self->chore);
    self->releasing = true;
}

void kept_list_drop(struct kept_list *self, struct kept_sample *sample)
{
    const struct kept_info *info = &sample->info;
    EFFECT(self->samples->loop, forget, info->client, info->id);
    if (!info->answered)
        info->table->stats.orphaned_picks += info->holds ? sample->picks.n : sample->n;
    kept_list_remove(self, sample);
    release(self, sample);
}

void kept_list_drop_client(struct kept_list *self, struct kept_client *client)
{
    for (struct kept_sample *sample = client->first, *after; sample; sample = after) {
        after = sample->after;
        kept_list_drop(self, sample);
    }
    client_unlink(self, client);
    idmap_remove(&self->clients, client->client);
    self->n_clients--;
    free(client);
}

/* ---- life ---- */

void kept_list_init(struct kept_list *self, struct samples *samples)
{
    *self = (struct kept_list){
        .chore = {.step = release_step},
        .samples = samples,
        .budget = (uint64_t)samples->config->memory_limit / MEMORY_SHARE,
        .releases_left = REFS_AT_ONCE,
    };
}

void kept_list_fini(struct kept_list *self)
{
    struct kept_sample *const lists[] = {self->oldest, self->dropped, self->spare};
    for (uint32_t i = 0; i < 3; i++)
        for (struct kept_sample *sample = lists[i], *next; sample; sample = next) {
            next = sample->newer;
            if (i == 0)
                self->samples->store->overhead -= sample->own_bytes;
            picks_clear(&sample->picks, self->samples);
            sample_free(sample);
        }
    while (self->first_client) {
        struct kept_client *client = self->first_client;
        self->first_client = client->next;
        free(client);
    }
    idmap_fini(&self->clients);
    kept_list_init(self, self->samples);
}
