/* The books against the shards: what is in the tables, what came out of the queue, and where the cursors are. */

#include "agent/client/conn/client.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/wire/pb.h"
#include "tests/chaos/shards.h"
#include "tests/support/tempdir.h"

#define SHORT_MS 300
#define LONG_MS 60000

/* ---- questions to one shard ---- */

static rp_status ask(struct conn *conn, struct conn_message message, Replay__Reply__BodyCase want, void *out,
                     rp_error *error)
{
    struct conn_reply *reply = NULL;
    RP_TRY(conn_call(conn, &message, &reply, error));
    rp_status status = conn_reply_read(reply, want, out, error);
    conn_reply_destroy(&reply);
    return status;
}

static rp_status ask_info(struct conn *conn, int64_t timeout_ms, Replay__InfoReply **out, rp_error *error)
{
    Replay__Info body = REPLAY__INFO__INIT;
    body.table = (char *)(uintptr_t)table_names[REPLAY];
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_INFO, .body = &body.base, .timeout_ms = timeout_ms};
    return ask(conn, message, REPLAY__REPLY__BODY_INFO, out, error);
}

static rp_status ask_list(struct conn *conn, uint32_t table, uint64_t cursor, Replay__ListReply **out, rp_error *error)
{
    Replay__List body = REPLAY__LIST__INIT;
    body.table = (char *)(uintptr_t)table_names[table];
    body.cursor = cursor;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_LIST, .body = &body.base, .timeout_ms = LONG_MS};
    return ask(conn, message, REPLAY__REPLY__BODY_LIST, out, error);
}

/* ---- cursors ---- */

/* Returns the cursor of a shard; NaN: it did not answer. */
static double cursor_of(struct chaos *self, struct conn *conn, uint32_t shard)
{
    Replay__InfoReply *reply;
    if (ask_info(conn, SHORT_MS, &reply, NULL) != RP_OK)
        return NAN;
    const Replay__LimiterInfo *limiter = reply->n_tables == 1 ? reply->tables[0]->limiter : NULL;
    double cursor = limiter ? limiter->cursor : NAN;
    if (!limiter || !(cursor >= limiter->min_diff) || !(cursor <= limiter->max_diff))
        chaos_complain(self, "the cursor of shard %u is %g, the bounds are %g and %g", shard, cursor,
                       limiter ? limiter->min_diff : NAN, limiter ? limiter->max_diff : NAN);
    unpack_free(&reply->base);
    return cursor;
}

void *audit_watch(void *arg)
{
    struct chaos *self = arg;
    static uint8_t block[64 << 10];
    char file[96];
    rp_client *client = chaos_connect(self, 1, "watch");
    snprintf(file, sizeof file, "%s/watch", self->set.dir);
    while (client && atomic_load(&self->phase) != STOP) {
        int64_t before = clock_ns(), woken;
        double sum = 0;
        chaos_sleep(0.05);
        woken = clock_ns();
        chaos_raise(&self->late_ns, woken - before - NS_PER_S / 20);
        atomic_store(&self->disk_since_ns, woken);
        file_write(file, block, sizeof block, 0600);
        atomic_fetch_add(&self->disk_ns, clock_ns() - woken);
        atomic_store(&self->disk_since_ns, 0);
        for (uint32_t s = 0; s < self->n; s++)
            sum += cursor_of(self, client_shard(client, s), s);
        if (isnan(sum))
            continue;
        self->lowest = sum < self->lowest ? sum : self->lowest;
        self->highest = sum > self->highest ? sum : self->highest;
    }
    rp_client_destroy(&client);
    return NULL;
}

/* ---- items ---- */

static int compare_keys(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static uint32_t count_of(const struct chaos *self)
{
    uint32_t count = atomic_load(&self->count);
    return count < MOST_ITEMS ? count : MOST_ITEMS;
}

/* True if the item must be known to its shard: it was accepted, and with a journal or since the last kill of its shard. */
static bool is_safe(const struct chaos *self, const struct book *book, uint32_t table)
{
    uint32_t shard = (uint32_t)(atomic_load(&book->key[table]) >> 56);
    return !book->doubt[table] && (self->journal || book->kills[table] == atomic_load(&self->kills[shard]));
}

uint32_t audit_waiting(struct chaos *self)
{
    uint32_t waiting = 0;
    pthread_mutex_lock(&self->lock);
    if (self->n_doubts)
        qsort(self->doubts, self->n_doubts, sizeof *self->doubts, compare_keys);
    for (uint32_t i = 0; i < count_of(self); i++) {
        struct book *book = &self->books[i];
        for (uint32_t t = 0; t < TABLES; t++) {
            uint64_t key = atomic_load(&book->key[t]);
            book->doubt[t] =
                self->n_doubts && bsearch(&key, self->doubts, self->n_doubts, sizeof key, compare_keys) != NULL;
            waiting += is_safe(self, book, t) && atomic_load(&book->taken[t]) < table_times[t];
        }
    }
    pthread_mutex_unlock(&self->lock);
    return waiting;
}

struct by_key {
    uint64_t key;
    uint32_t number;
};

static struct by_key *sort_books(const struct chaos *self, uint32_t table)
{
    struct by_key *keys = calloc(count_of(self) + 1, sizeof *keys);
    for (uint32_t i = 0; keys && i < count_of(self); i++)
        keys[i] = (struct by_key){atomic_load(&self->books[i].key[table]), i};
    if (keys)
        qsort(keys, count_of(self), sizeof *keys, compare_keys);
    return keys;
}

static void check_item(struct chaos *self, const struct by_key *keys, uint32_t table, uint32_t shard,
                       const Replay__ItemInfo *item)
{
    const struct by_key *at = bsearch(&item->key, keys, count_of(self), sizeof *keys, compare_keys);
    if (!at || item->key >> 56 != shard) {
        chaos_complain(self, "shard %u has an item in '%s' that nobody wrote: %llx", shard, table_names[table],
                       (unsigned long long)item->key);
        return;
    }
    struct book *book = &self->books[at->number];
    book->found[table]++;
    if (table == REPLAY && is_safe(self, book, REPLAY) && book->priority > 0 && item->priority != book->priority)
        self->older++;
}

static void read_table(struct chaos *self, rp_client *client, uint32_t table, const struct by_key *keys)
{
    for (uint32_t s = 0; s < self->n; s++) {
        uint64_t cursor = 0;
        do {
            Replay__ListReply *reply;
            if (ask_list(client_shard(client, s), table, cursor, &reply, &err) != RP_OK) {
                chaos_complain(self, "the items of shard %u cannot be listed: %s", s, err.text);
                return;
            }
            for (size_t i = 0; i < reply->n_items; i++)
                check_item(self, keys, table, s, reply->items[i]);
            cursor = reply->cursor;
            unpack_free(&reply->base);
        } while (cursor);
    }
}

static void check_table(struct chaos *self, rp_client *client, uint32_t table)
{
    uint32_t missing = 0, twice = 0, count = count_of(self);
    self->older = 0;
    struct by_key *keys = sort_books(self, table);
    for (uint32_t i = 0; i < count; i++)
        self->books[i].found[table] = 0;
    if (keys)
        read_table(self, client, table, keys);
    for (uint32_t i = 0; i < count; i++) {
        const struct book *book = &self->books[i];
        bool gone = table_times[table] && atomic_load(&book->taken[table]) >= table_times[table];
        missing += is_safe(self, book, table) && !gone && book->found[table] == 0;
        twice += book->found[table] > 1 || (self->journal && gone && book->found[table]);
    }
    free(keys);
    if (self->older > atomic_load(&self->ignored))
        chaos_complain(
            self, "%u items do not have the priority that they were given last, though only %llu updates were ignored",
            self->older, (unsigned long long)atomic_load(&self->ignored));
    if (missing || twice)
        chaos_complain(self, "table '%s': %u items are missing, %u are there twice", table_names[table], missing,
                       twice);
}

static void check_taken(struct chaos *self, uint32_t table)
{
    uint32_t more = 0;
    for (uint32_t i = 0; table_times[table] && i < count_of(self); i++)
        more += is_safe(self, &self->books[i], table) && atomic_load(&self->books[i].taken[table]) > table_times[table];
    if (more)
        chaos_complain(self, "%u items came out of '%s' too often", more, table_names[table]);
}

/* With a journal, the limiters know every insert, and no sample came without a permit. */
static void check_limiters(struct chaos *self, rp_client *client)
{
    uint64_t inserts = 0, samples = 0, received = atomic_load(&self->sampled[REPLAY]);
    for (uint32_t s = 0; s < self->n; s++) {
        Replay__InfoReply *reply;
        if (ask_info(client_shard(client, s), LONG_MS, &reply, &err) != RP_OK) {
            chaos_complain(self, "shard %u does not answer: %s", s, err.text);
            return;
        }
        inserts += reply->tables[0]->limiter->inserts;
        samples += reply->tables[0]->limiter->samples;
        unpack_free(&reply->base);
    }
    if (inserts != count_of(self))
        chaos_complain(self, "the limiters count %llu inserts, the books %u", (unsigned long long)inserts,
                       count_of(self));
    if (samples < received || samples - received > LEARNERS * 64 * 2 * self->n * 4)
        chaos_complain(self, "the limiters count %llu samples, %llu came", (unsigned long long)samples,
                       (unsigned long long)received);
}

void audit(struct chaos *self, rp_client *client)
{
    for (uint32_t t = 0; t < TABLES; t++) {
        check_table(self, client, t);
        check_taken(self, t);
    }
    if (self->journal)
        check_limiters(self, client);
}
