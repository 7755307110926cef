#include "broker/sample/kept_samples.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/loop/entries.h"
#include "broker/loop/loop.h"
#include "broker/sample/samples.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* A client that reads is done long before. */
#define LOAN_NS NS_PER_S
#define DROPS_PER_SWEEP 256u
#define CLIENTS_MOST 65536u
#define MEMORY_SHARE 16 /* kept samples may take a sixteenth of memory_limit */
/* Chunk references that are released at once; more are released in slices, by a chore. */
#define REFS_AT_ONCE 2048u
#define REFS_PER_STEP 256u
/* Spare samples, and the largest arrays that they keep. */
#define SPARES 256u
#define SPARE_ITEMS 1024u
#define SPARE_REFS 4096u
/* Bytes of an item of which only key, priority, probability and times_sampled are kept. */
#define KEPT_ITEM_BYTES (3 * 8 + 4)

struct kept_sample {
    struct kept kept; /* first */
    struct kept_info info;
    struct kept_sample *next; /* of those that are dropped or spare */
    int64_t since_ns;
    bool loaned; /* in the list of loans */
    TAILQ_ENTRY(kept_sample) loan;
    uint64_t loan_bytes; /* of its bytes: those that go with the loan */
    void *lent;          /* shared memory for its reply; NULL: none */
    uint64_t lent_bytes;
    uint64_t own_bytes; /* of its bytes: other than of chunks */
    struct picks picks; /* if info.holds */
    /* Otherwise: key[n], priority[n], probability[n], times_sampled[n]. */
    uint32_t n;
    uint64_t table_size;
    uint8_t *block;
    size_t room; /* bytes of the block */
};

static double *kept_priority(const struct kept_sample *self)
{
    return (double *)(void *)(self->block + (size_t)self->n * 8);
}

static double *kept_probability(const struct kept_sample *self)
{
    return (double *)(void *)(self->block + (size_t)self->n * 16);
}

static uint32_t *kept_times_sampled(const struct kept_sample *self)
{
    return (uint32_t *)(void *)(self->block + (size_t)self->n * 24);
}

/* Returns the bytes that are kept of n picks when nothing holds them. */
static uint64_t bare_bytes(uint32_t n)
{
    return sizeof(struct kept_sample) + (uint64_t)n * KEPT_ITEM_BYTES;
}

/* True if the picks are held only because the client reads their data itself. */
static bool is_loan(const struct kept_info *self)
{
    return self->holds && self->answered && !picks_leave(self->table, self->flags);
}

static struct kept_sample *sample_find(const struct kept_client *client, uint64_t id)
{
    return (struct kept_sample *)kept_list_find(client, id);
}

/* ---- memory ---- */

/* Returns an empty sample. */
static struct kept_sample *sample_new(struct kept_samples *self)
{
    struct kept_sample *sample = self->spare;
    if (!sample)
        return need_alloc(sizeof *sample);
    self->spare = sample->next;
    self->n_spare--;
    return sample;
}

static void sample_free(struct kept_sample *sample)
{
    picks_fini(&sample->picks);
    free(sample->block);
    free(sample);
}

/* Frees a sample that is in no list and holds nothing, or keeps its memory for the next. */
static void sample_recycle(struct kept_samples *self, struct kept_sample *sample)
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
    sample->next = self->spare;
    self->spare = sample;
    self->n_spare++;
}

/* ---- dropping ---- */

static bool release_step(struct chore *chore)
{
    struct kept_samples *self = (struct kept_samples *)(void *)((char *)chore - offsetof(struct kept_samples, chore));
    struct kept_sample *sample = self->dropped;
    struct picks *picks = &sample->picks;
    for (uint32_t i = 0; i < REFS_PER_STEP && picks->n_refs; i++)
        store_release(self->samples->store, picks->refs[--picks->n_refs]);
    if (picks->n_refs == 0) {
        self->dropped = sample->next;
        picks_clear(picks, self->samples);
        sample_recycle(self, sample);
    }
    self->releasing = self->dropped != NULL;
    return self->releasing;
}

/* Releases a sample that is in no list any more, at once or in slices. */
static void sample_release(struct kept_samples *self, struct kept_sample *sample)
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
        sample_recycle(self, sample);
        return;
    }
    sample->next = self->dropped;
    self->dropped = sample;
    if (!self->releasing)
        chores_add(&loop->chores, &self->chore);
    self->releasing = true;
}

/* Adds a loan, or bytes to it. */
static void loan_add(struct kept_samples *self, struct kept_sample *sample, uint64_t bytes)
{
    sample->loan_bytes += bytes;
    self->loan_bytes += bytes;
    if (sample->loaned)
        return;
    sample->loaned = true;
    TAILQ_INSERT_TAIL(&self->loans, sample, loan);
}

static void loan_remove(struct kept_samples *self, struct kept_sample *sample)
{
    if (!sample->loaned)
        return;
    self->loan_bytes -= sample->loan_bytes;
    sample->loan_bytes = 0;
    sample->loaned = false;
    TAILQ_REMOVE(&self->loans, sample, loan);
}

/* Frees the memory that was lent for the reply. */
static void lent_end(struct kept_samples *self, struct kept_sample *sample)
{
    if (!sample->lent)
        return;
    shm_free(self->samples->store->shm, sample->lent);
    sample->lent = NULL;
    self->list.bytes -= sample->lent_bytes;
    sample->kept.bytes -= sample->lent_bytes;
    if (!is_loan(&sample->info)) {
        loan_remove(self, sample);
        return;
    }
    self->loan_bytes -= sample->lent_bytes;
    sample->loan_bytes -= sample->lent_bytes;
}

/* Takes a sample out of the lists. */
static void sample_remove(struct kept_samples *self, struct kept_sample *sample)
{
    lent_end(self, sample);
    loan_remove(self, sample);
    kept_list_remove(&self->list, &sample->kept);
    self->samples->store->overhead -= sample->own_bytes;
}

/* Forgets a sample for good. */
static void sample_drop(struct kept_samples *self, struct kept_sample *sample)
{
    const struct kept_info *info = &sample->info;
    EFFECT_ENTRY(self->samples->loop, ENTRY_FORGET, 0, entry_request, info->client, info->id);
    if (!info->answered)
        info->table->stats.orphaned_picks += info->holds ? sample->picks.n : sample->n;
    sample_remove(self, sample);
    sample_release(self, sample);
}

/* Drops samples of a client, the oldest first and *left at most. Returns the number of picks that nobody has read. */
static uint32_t client_drop(struct kept_samples *self, const struct kept_client *client, uint32_t *left)
{
    uint32_t lost = 0;
    for (struct kept *kept = TAILQ_FIRST(&client->answers), *after; kept && *left; kept = after, --*left) {
        struct kept_sample *sample = (struct kept_sample *)kept;
        after = TAILQ_NEXT(kept, of_client);
        lost += sample->info.answered ? 0 : sample->picks.n;
        sample_drop(self, sample);
    }
    return lost;
}

/* Returns a client, made if need be. NULL: it is anonymous. */
static struct kept_client *client_make(struct kept_samples *self, uint64_t id)
{
    if (!id)
        return NULL;
    if (self->list.clients.count >= CLIENTS_MOST && !kept_client_find(&self->list, id)) {
        struct kept_client *silent = TAILQ_FIRST(&self->list.heard);
        uint32_t all = UINT32_MAX;
        client_drop(self, silent, &all);
        kept_client_forget(&self->list, silent);
    }
    return kept_client_make(&self->list, id, self->samples->loop->now_ns);
}

/* ---- keeping ---- */

static bool block_reserve(struct kept_sample *self, uint32_t n)
{
    size_t need = (size_t)n * KEPT_ITEM_BYTES;
    if (need <= self->room)
        return true;
    free(self->block);
    self->block = malloc(need);
    self->room = self->block ? need : 0;
    return self->block != NULL;
}

static bool block_fill(struct kept_sample *self, const struct picks *picks)
{
    if (picks->n == 0 || !block_reserve(self, picks->n))
        return false;
    self->n = picks->n;
    self->table_size = picks->table_size;
    memcpy(self->block, picks->key, (size_t)picks->n * 8);
    memcpy(kept_priority(self), picks->priority, (size_t)picks->n * 8);
    memcpy(kept_probability(self), picks->probability, (size_t)picks->n * 8);
    memcpy(kept_times_sampled(self), picks->times_sampled, (size_t)picks->n * 4);
    return true;
}

/* Moves the picks of a loan; what a retry needs stays. False: no memory, and nothing was moved. */
static bool loan_move(struct kept_samples *self, struct kept_sample *sample, struct picks *out)
{
    if (!block_fill(sample, &sample->picks))
        return false;
    loan_remove(self, sample);
    picks_fini(out);
    *out = sample->picks;
    sample->picks = (struct picks){0};
    sample->info.holds = false;
    uint64_t own = bare_bytes(sample->n);
    self->list.bytes += own - sample->kept.bytes;
    self->samples->store->overhead += own - sample->own_bytes;
    sample->kept.bytes = sample->own_bytes = own;
    return true;
}

/* Ends a loan: its chunks are released. */
static void loan_end(struct kept_samples *self, struct kept_sample *sample)
{
    lent_end(self, sample);
    if (!sample->loaned)
        return;
    struct kept_sample *held = sample_new(self);
    held->info = sample->info;
    if (loan_move(self, sample, &held->picks)) {
        sample_release(self, held);
    } else {
        sample_recycle(self, held);
        sample_drop(self, sample);
    }
}

/* Returns the bytes of the chunks that picks keep from being freed. A chunk that neighbours share counts once. Of a loan each
 * chunk counts in part, for it has other holders; should they all go, the loan is the first to give way. */
static uint64_t held_bytes(const struct picks *picks, bool loan)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < picks->n_refs; i++) {
        const struct chunk *chunk = picks->refs[i];
        if (i == 0 || chunk != picks->refs[i - 1])
            bytes += chunk_cost(chunk) / (loan ? chunk->refs : 1);
    }
    return bytes;
}

static void log_full(struct kept_samples *self, const struct kept_info *info, uint32_t picks)
{
    uint32_t held;
    if (log_allow(&self->full_log, 1, self->samples->loop->now_ns, &held))
        log_line(LEVEL_WARN, "B0540", "sample forgotten before the client said that it has it",
                 "table=%s client=%016llx id=%llu picks=%u budget_bytes=%llu held_back=%u", info->table->name,
                 (unsigned long long)info->client, (unsigned long long)info->id, picks,
                 (unsigned long long)self->budget, held);
}

/* A loan takes only the room of other loans; if that is not enough, they stay. */
static bool make_room(struct kept_samples *self, struct kept_client *client, uint64_t bytes, bool loan)
{
    if (bytes > self->budget || (loan && self->list.bytes - self->loan_bytes + bytes > self->budget))
        return false;
    while (client->count >= (client->settled ? KEPT_SETTLING : KEPT_PER_CLIENT))
        sample_drop(self, (struct kept_sample *)TAILQ_FIRST(&client->answers));
    while (self->list.bytes + bytes > self->budget && !TAILQ_EMPTY(&self->loans))
        loan_end(self, TAILQ_FIRST(&self->loans));
    while (self->list.bytes + bytes > self->budget) {
        struct kept_sample *oldest = (struct kept_sample *)TAILQ_FIRST(&self->list.answers);
        if (oldest->info.holds)
            log_full(self, &oldest->info, oldest->picks.n);
        sample_drop(self, oldest);
    }
    return true;
}

/* Takes picks to hold, or copies of them what is needed. reserved: a sample to use, or NULL. NULL: no memory or no room, and
 * nothing was taken. */
static struct kept_sample *keep(struct kept_samples *self, struct kept_client *client, const struct kept_info *info,
                                struct picks *picks, struct kept_sample **reserved)
{
    uint64_t own =
        info->holds ? bare_bytes(0) + (uint64_t)picks->capacity * PICKS_ITEM_BYTES + (uint64_t)picks->refs_capacity * 8
                    : bare_bytes(picks->n);
    uint64_t bytes = own + (info->holds ? held_bytes(picks, is_loan(info)) : 0);
    if (!make_room(self, client, bytes, is_loan(info))) {
        if (!is_loan(info))
            log_full(self, info, picks->n);
        return NULL;
    }
    struct kept_sample *sample = reserved && *reserved ? *reserved : sample_new(self);
    if (reserved)
        *reserved = NULL;
    sample->n = 0;
    if (info->holds) {
        struct picks empty = sample->picks;
        sample->picks = *picks;
        *picks = empty;
    } else if (!block_fill(sample, picks)) {
        sample_recycle(self, sample);
        return NULL;
    }
    sample->info = *info;
    sample->kept.id = info->id;
    sample->kept.bytes = bytes;
    sample->own_bytes = own;
    sample->since_ns = self->samples->loop->now_ns;
    kept_list_add(&self->list, client, &sample->kept);
    if (is_loan(info))
        loan_add(self, sample, bytes - bare_bytes(sample->picks.n));
    self->samples->store->overhead += own;
    return sample;
}

struct kept_info kept_samples_info(const struct waiter *waiter)
{
    return (struct kept_info){
        .client = waiter->wait.client,
        .id = waiter->wait.id,
        .table = waiter->table,
        .want = waiter->want,
        .flags = waiter->flags,
        .answered = waiter->again,
        .holds = true,
    };
}

void kept_samples_lose(struct waiter *waiter)
{
    if (waiter->wait.client)
        EFFECT_ENTRY(waiter->samples->loop, ENTRY_FORGET, 0, entry_request, waiter->wait.client, waiter->wait.id);
    if (!waiter->lease) /* otherwise its items return */
        waiter->table->stats.orphaned_picks += waiter->picks.n;
}

bool kept_samples_reserve(struct waiter *waiter)
{
    struct kept_samples *self = &waiter->samples->kept;
    if (!waiter->wait.client)
        return true;
    client_make(self, waiter->wait.client);
    waiter->reserved = sample_new(self);
    return (picks_leave(waiter->table, waiter->flags) || block_reserve(waiter->reserved, waiter->want));
}

void kept_samples_unreserve(struct waiter *waiter)
{
    if (waiter->reserved)
        sample_recycle(&waiter->samples->kept, waiter->reserved);
    waiter->reserved = NULL;
}

/* True if the client might read some chunk itself: small ones travel. */
static bool some_are_shared(const struct picks *picks)
{
    for (uint32_t i = 0; i < picks->n_refs; i++)
        if (picks->refs[i]->bytes >= STORE_OWN_BYTES)
            return true;
    return false;
}

struct picks *kept_samples_keep(struct waiter *waiter, bool answered)
{
    struct kept_samples *self = &waiter->samples->kept;
    struct loop *loop = waiter->samples->loop;
    uint64_t client_id = waiter->wait.client, id = waiter->wait.id;
    if (waiter->picks.n == 0 || waiter->fetch)
        return &waiter->picks;
    if (!answered && waiter->lease && !waiter->again) {
        kept_samples_lose(waiter);
        return &waiter->picks;
    }
    if (answered && !waiter->again && client_id)
        EFFECT_ENTRY(loop, ENTRY_ANSWERED, 0, entry_request, client_id, id);
    answered |= waiter->again;
    struct kept_client *client = client_make(self, client_id);
    /* A sample whose items are looked up by keys stays kept while it is sent once more. Nothing holds its data then. */
    if (waiter->again && sample_find(client, id)) {
        waiter->shared = false;
        return &waiter->picks;
    }
    struct kept_sample *sample = NULL;
    struct kept_info info = kept_samples_info(waiter);
    info.answered = answered;
    bool reads = waiter->shared && client && id > client->settled;
    waiter->shared = reads && some_are_shared(&waiter->picks);
    info.holds = picks_leave(info.table, info.flags) || !answered || waiter->shared;
    if (client && id > client->settled) {
        if (info.holds)
            picks_own(&waiter->picks, waiter->samples);
        sample = keep(self, client, &info, &waiter->picks, &waiter->reserved);
        if (!sample && is_loan(&info)) { /* no room for a loan: the data travels */
            waiter->shared = info.holds = false;
            sample = keep(self, client, &info, &waiter->picks, &waiter->reserved);
        }
        client->shared |= waiter->shared;
    }
    waiter->kept = reads && waiter->reads >= WIRE_SHARED_PACKED ? sample : NULL;
    if (sample)
        return info.holds ? &sample->picks : &waiter->picks;
    waiter->shared = false;
    if (!answered)
        kept_samples_lose(waiter);
    else if (client_id)
        EFFECT_ENTRY(loop, ENTRY_FORGET, 0, entry_request, client_id, id);
    return &waiter->picks;
}

void *kept_samples_lend(struct kept_samples *self, struct kept_sample *sample, size_t bytes)
{
    struct kept_sample *oldest;
    while (self->list.bytes + bytes > self->budget && (oldest = TAILQ_FIRST(&self->loans)) && oldest != sample)
        loan_end(self, oldest);
    if (self->list.bytes + bytes > self->budget)
        return NULL;
    sample->lent = shm_alloc(self->samples->store->shm, bytes);
    if (!sample->lent)
        return NULL;
    sample->lent_bytes = bytes;
    sample->kept.bytes += bytes;
    self->list.bytes += bytes;
    loan_add(self, sample, bytes);
    sample->kept.client->shared = true;
    return sample->lent;
}

/* ---- retries ---- */

rp_status kept_samples_check(const struct samples *samples, const struct kept_info *asked, rp_error *err)
{
    const struct kept_client *client = kept_client_find(&samples->kept.list, asked->client);
    if (!client)
        return RP_OK;
    if (asked->id <= client->settled)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "this client has said that it has all replies up to request %llu: %llu is not answered again",
                       (unsigned long long)client->settled, (unsigned long long)asked->id);
    const struct kept_sample *sample = sample_find(client, asked->id);
    if (!sample)
        return RP_OK;
    const struct kept_info *first = &sample->info;
    if (first->table != asked->table || first->want != asked->want || first->flags != asked->flags)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "request %llu of this client was a sample of %u items of table '%s'%s: another one needs a new id",
            (unsigned long long)asked->id, first->want, first->table->name,
            first->flags != asked->flags ? ", with other flags" : "");
    return RP_OK;
}

/* Picks the items of a sample that holds none, as far as they are in the table. False: no memory. */
static bool look_up(struct waiter *waiter, const struct kept_sample *sample)
{
    const uint64_t *keys = (const uint64_t *)(const void *)sample->block;
    struct picks *picks = &waiter->picks;
    for (uint32_t i = 0; i < sample->n; i++) {
        uint32_t slot = table_find(waiter->table, keys[i]);
        if (slot == KEYMAP_NONE)
            continue;
        if (sample->info.flags & PICK_LEASED) {
            struct lease *lease = lease_of(&waiter->samples->leases, sample->info.client, waiter->table, slot);
            if (!lease || lease->id != sample->info.id)
                continue; /* it has returned, and may be somebody else's */
            if (waiter->lease != lease)
                lease_again(lease, waiter);
        }
        if (!picks_add_member(picks, waiter->table, slot, kept_probability(sample)[i]))
            return false;
        picks->priority[picks->n - 1] = kept_priority(sample)[i];
        picks->times_sampled[picks->n - 1] = kept_times_sampled(sample)[i];
    }
    picks->table_size = sample->table_size;
    waiter->gone = sample->n - picks->n;
    return true;
}

enum kept_found kept_samples_load(struct waiter *waiter)
{
    struct kept_samples *self = &waiter->samples->kept;
    struct kept_sample *sample = sample_find(kept_client_find(&self->list, waiter->wait.client), waiter->wait.id);
    if (sample && sample->loaned && (sample->info.flags & PICK_LEASED)) {
        loan_end(self, sample); /* by their keys it is known which items are still under its lease */
        sample = sample_find(kept_client_find(&self->list, waiter->wait.client), waiter->wait.id);
    }
    if (!sample)
        return KEPT_NOTHING;
    bool answered = sample->info.answered;
    lent_end(self, sample);
    if (!sample->info.holds) {
        if (!look_up(waiter, sample))
            return KEPT_NO_MEMORY;
        if (waiter->picks.n == 0) { /* none of its items is left: a new sample takes its place */
            waiter->gone = 0;
            sample_drop(self, sample);
            return KEPT_NOTHING;
        }
    } else if (!sample->loaned || !loan_move(self, sample, &waiter->picks)) {
        struct picks empty = waiter->picks;
        waiter->picks = sample->picks;
        sample->picks = empty;
    }
    if (sample->info.holds || !answered) {
        sample_remove(self, sample);
        sample_recycle(self, sample);
    }
    waiter->again = answered;
    waiter_count_empty(waiter);
    return answered ? KEPT_ANSWERED : KEPT_UNANSWERED;
}

bool kept_samples_relieve(void *samples)
{
    struct kept_samples *self = &((struct samples *)samples)->kept;
    struct kept_sample *oldest = TAILQ_FIRST(&self->loans);
    if (self->releasing || !oldest || self->samples->loop->now_ns - oldest->since_ns < LOAN_NS)
        return false;
    loan_end(self, oldest);
    return true;
}

uint32_t kept_samples_readers(const struct kept_samples *self)
{
    uint32_t n = 0;
    for (const struct kept_client *at = TAILQ_FIRST(&self->list.heard); at; at = TAILQ_NEXT(at, link))
        n += at->shared;
    return n;
}

/* ---- forgetting ---- */

void kept_samples_settle(struct samples *samples, uint64_t client_id, uint64_t id)
{
    struct kept_samples *self = &samples->kept;
    struct kept_client *client = kept_client_find(&self->list, client_id);
    if (!client)
        return;
    kept_client_heard(&self->list, client, samples->loop->now_ns);
    if (id <= client->settled)
        return;
    client->settled = id;
    for (struct kept *kept = TAILQ_FIRST(&client->answers), *after; kept; kept = after) {
        struct kept_sample *sample = (struct kept_sample *)kept;
        after = TAILQ_NEXT(kept, of_client);
        if (kept->id <= id) {
            sample->info.answered = true; /* or not wanted: its picks do not count as lost */
            sample_drop(self, sample);
        }
    }
}

void kept_samples_sweep(struct samples *samples)
{
    struct kept_samples *self = &samples->kept;
    int64_t now_ns = samples->loop->now_ns;
    uint32_t left = DROPS_PER_SWEEP, lost = 0;
    struct kept_client *client;
    while ((client = TAILQ_FIRST(&self->list.heard)) && left) {
        if (now_ns - client->heard_ns <= CONFIG_TOMBSTONE * samples->config->expiry_ns)
            break;
        lost += client_drop(self, client, &left);
        if (!client->count)
            kept_client_forget(&self->list, client);
    }
    if (samples->store->sharing && kept_samples_readers(self) == 0)
        samples->store->sharing = false;
    uint32_t held;
    if (lost && log_allow(&self->gone_log, 1, now_ns, &held))
        log_line(LEVEL_WARN, "B0541", "a sampler did not come back for the items picked for it",
                 "picks=%u held_back=%u", lost, held);
}

/* ---- checkpoint and restore ---- */

/* Stands in for arrays that are not kept. Never written to. */
static const uint64_t zeros[SAMPLE_MAX_ITEMS];

/* Returns what is known of a sample that holds nothing; a loan ends with the broker. */
static struct picks bare_picks(const struct kept_sample *sample)
{
    bool loaned = sample->info.holds;
    const struct picks *picks = &sample->picks;
    uint32_t n = loaned ? picks->n : sample->n;
    struct picks out = {.n = n < SAMPLE_MAX_ITEMS ? n : SAMPLE_MAX_ITEMS,
                        .table_size = loaned ? picks->table_size : sample->table_size};
    for (uint32_t i = 0; i < PICKS_WIDE; i++)
        out.wide[i] = (void *)(uintptr_t)zeros;
    for (uint32_t i = 0; i < PICKS_NARROW; i++)
        out.narrow[i] = (void *)(uintptr_t)zeros;
    out.key = loaned ? picks->key : (uint64_t *)(void *)sample->block;
    out.priority = loaned ? picks->priority : kept_priority(sample);
    out.probability = loaned ? picks->probability : kept_probability(sample);
    out.times_sampled = loaned ? picks->times_sampled : kept_times_sampled(sample);
    return out;
}

void kept_samples_each(const struct samples *samples, kept_image_fn *fn, void *ctx)
{
    for (const struct kept *kept = TAILQ_FIRST(&samples->kept.list.answers); kept; kept = TAILQ_NEXT(kept, of_all)) {
        const struct kept_sample *at = (const struct kept_sample *)kept;
        struct kept_image image = {at->info, at->picks};
        image.info.holds = at->info.holds && !is_loan(&at->info);
        if (!image.info.holds)
            image.picks = bare_picks(at);
        fn(ctx, &image);
    }
}

bool kept_samples_restore(struct samples *samples, struct kept_image *image)
{
    struct kept_samples *self = &samples->kept;
    const struct kept_info *info = &image->info;
    struct picks *picks = &image->picks;
    struct kept_client *client = info->id ? client_make(self, info->client) : NULL;
    bool ok = client && picks->n && picks->n <= SAMPLE_MAX_ITEMS && !sample_find(client, info->id) &&
              keep(self, client, info, picks, NULL);
    if (!info->holds)
        picks->n = picks->n_refs = 0; /* they held nothing */
    picks_clear(picks, samples);
    picks_fini(picks);
    return ok;
}

/* ---- life ---- */

void kept_samples_init(struct kept_samples *self, struct samples *samples)
{
    *self = (struct kept_samples){
        .chore = {.step = release_step},
        .samples = samples,
        .budget = (uint64_t)samples->config->memory_limit / MEMORY_SHARE,
        .releases_left = REFS_AT_ONCE,
    };
    kept_list_init(&self->list);
    TAILQ_INIT(&self->loans);
}

void kept_samples_fini(struct kept_samples *self)
{
    while (!TAILQ_EMPTY(&self->list.answers)) {
        struct kept_sample *sample = (struct kept_sample *)TAILQ_FIRST(&self->list.answers);
        sample_remove(self, sample);
        sample->next = self->dropped;
        self->dropped = sample;
    }
    struct kept_sample *const lists[] = {self->dropped, self->spare};
    for (uint32_t i = 0; i < 2; i++)
        for (struct kept_sample *sample = lists[i], *next; sample; sample = next) {
            next = sample->next;
            picks_clear(&sample->picks, self->samples);
            sample_free(sample);
        }
    while (!TAILQ_EMPTY(&self->list.heard))
        kept_client_forget(&self->list, TAILQ_FIRST(&self->list.heard));
    idmap_fini(&self->list.clients);
    kept_samples_init(self, self->samples);
}
