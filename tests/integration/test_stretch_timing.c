/* The core thread never works longer than 2 ms at a stretch on anything whose cost grows with a table. Each turn of the
 * loop is measured by the CPU time of this thread, with a million items in the table. A machine whose memory is slow, or shared
 * with others, gets more: the time of as many cache misses as take 2 ms elsewhere. Under a sanitizer everything is run small, and
 * nothing is measured. */

#include <time.h>

#include "tests/support/naive.h"
#include "tests/support/testpeer.h"

#define MOST_NS (2 * NS_PER_MS)
/* Reads that miss the caches, one after the other: 100 ns each on a machine of one's own. */
#define MISSES (MOST_NS / 100)
#define MISS_WORDS (UINT32_C(16) << 20)
#define PER_MESSAGE 500u

static uint32_t n_items = 1000000;
static bool measured = true;
static uint32_t too_long; /* phases of this test */

static int64_t cpu_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return at.tv_sec * NS_PER_S + at.tv_nsec;
}

/* Returns the bar on this machine, now. */
static int64_t bar_ns(void)
{
    static uint32_t *next; /* one cycle through all words, in random order */
    if (!next) {
        struct rng rng = rng_of(5);
        next = malloc(MISS_WORDS * sizeof *next);
        assert_non_null(next);
        for (uint32_t i = 0; i < MISS_WORDS; i++)
            next[i] = i;
        for (uint32_t i = MISS_WORDS - 1; i > 0; i--) {
            uint32_t j = (uint32_t)rng_below(&rng, i), word = next[i];
            next[i] = next[j];
            next[j] = word;
        }
    }
    static volatile uint32_t at;
    uint32_t word = at;
    int64_t start = cpu_now();
    for (int64_t i = 0; i < MISSES; i++)
        word = next[word];
    int64_t took = cpu_now() - start;
    at = word;
    return took > MOST_NS ? took : MOST_NS;
}

/* The longest stretch of a phase. */
struct watch {
    const char *phase;
    int64_t longest_ns;
    uint64_t turns;
};

static void watch_since(struct watch *watch, int64_t start)
{
    int64_t took = cpu_now() - start;
    if (took > watch->longest_ns)
        watch->longest_ns = took;
    watch->turns++;
}

static void turn(struct embed *embed, struct watch *watch)
{
    int64_t start = cpu_now();
    broker_turn(embed->broker, 0);
    watch_since(watch, start);
}

/* Turns until nothing is left to do. */
static void rest(struct embed *embed, struct watch *watch)
{
    for (uint32_t quiet = 0; quiet < 3;) {
        uint64_t before = embed->broker->peers.counters.messages_in;
        turn(embed, watch);
        bool busy = embed->broker->peers.counters.messages_in != before || embed->broker->tables.dirty ||
                    embed->broker->loop.chores.first;
        quiet = busy ? 0 : quiet + 1;
    }
}

/* For what is not bound by the table's size: only told. */
static void tell(const struct watch *watch)
{
    printf("%-40s longest stretch %7.3f ms of %llu turns\n", watch->phase, (double)watch->longest_ns * 1e-6,
           (unsigned long long)watch->turns);
    fflush(stdout);
}

static void judge(const struct watch *watch)
{
    tell(watch);
    int64_t bar = measured ? bar_ns() : 0;
    if (measured && watch->longest_ns > bar)
        printf("%-40s            bar %7.3f ms\n", "", (double)bar * 1e-6);
    too_long += measured && watch->longest_ns > bar;
}

static void fill(struct embed *embed, struct testpeer *peer, const char *table, uint32_t n, bool keep_chunks)
{
    struct watch watch = {.phase = keep_chunks ? "fill, chunks kept" : "fill"};
    for (uint32_t sent = 0; sent < n; sent += PER_MESSAGE) {
        uint32_t layout = testpeer_plain(peer, table), id = embed_table(embed, table)->id;
        for (uint32_t i = 0; i < PER_MESSAGE; i++) {
            uint64_t key = peer->key_base + sent + i;
            const void *blocks[] = {&key};
            testpeer_item(peer, layout, key, 1.0 + (double)(key % 97), testpeer_chunk(peer, 1, blocks, false), 0, 1);
        }
        if (!keep_chunks)
            peer->oldest_chunk = peer->chunk + 1;
        uint64_t last = *peer->layouts[layout].items;
        while (testpeer_allowed(peer, id) < last || peer->credit->allowed_bytes < peer->sent_bytes + 40000) {
            turn(embed, &watch);
            testpeer_read(peer);
            testpeer_forget(peer);
        }
        testpeer_push(peer);
    }
    rest(embed, &watch);
    testpeer_read(peer);
    testpeer_forget(peer);
    tell(&watch);
}

/* Widens the window until whole messages fit. */
static struct testpeer *open_wide(struct embed *embed, const char *table)
{
    struct testpeer *peer = testpeer_opened(embed, true);
    uint32_t id = embed_table(embed, table)->id;
    uint64_t key = peer->key_base + (UINT64_C(1) << 30);
    for (uint32_t i = 0; i < 100 && testpeer_allowed(peer, id) - testpeer_resolved(peer, id) < 2 * PER_MESSAGE; i++) {
        uint32_t n = (uint32_t)(testpeer_allowed(peer, id) - testpeer_resolved(peer, id));
        testpeer_insert(peer, table, key, n < 400 ? n : 400, 1);
        key += n;
        embed_settle(embed);
        testpeer_read(peer);
        testpeer_forget(peer);
    }
    return peer;
}

static struct testpeer_answer *timed_answer(struct embed *embed, struct watch *watch, struct testpeer *peer,
                                            uint64_t id)
{
    for (;;) {
        turn(embed, watch);
        testpeer_read(peer);
        for (struct testpeer_answer *answer = peer->answers; answer; answer = answer->next)
            if (answer->id == id)
                return answer;
    }
}

static void list_all(struct embed *embed, struct testpeer *peer, const char *table)
{
    struct watch watch = {.phase = "list"};
    uint64_t cursor = 0, seen = 0;
    do {
        Replay__Request *request = REQUEST_OF(LIST, list, List, .table = testpeer_text(table), .cursor = cursor);
        struct testpeer_answer *answer = timed_answer(embed, &watch, peer, testpeer_ask(peer, request));
        cursor = answer->reply->list->cursor;
        seen += answer->reply->list->n_items;
        testpeer_forget(peer);
    } while (cursor);
    assert_int_equal(seen, embed_table(embed, table)->in.size);
    judge(&watch);
}

/* The most that one request takes. */
#define KEYS REQUEST_MAX_KEYS

static void change_many(struct embed *embed, struct testpeer *peer, const char *table, uint64_t base, uint32_t n)
{
    static uint64_t keys[KEYS];
    static double priorities[KEYS];
    struct rng rng = rng_of(11);
    for (uint32_t i = 0; i < KEYS; i++) {
        keys[i] = base + rng_below(&rng, n);
        priorities[i] = 1 + (double)i;
    }
    struct watch update = {.phase = "update of 2048 keys"}, del = {.phase = "delete of 2048 keys"},
                 sample = {.phase = "sample of 4096 items"};
    Replay__Request *request = REQUEST_OF(UPDATE, update, Update, .table = testpeer_text(table), .n_key = KEYS,
                                          .key = keys, .n_priority = KEYS, .priority = priorities);
    timed_answer(embed, &update, peer, testpeer_ask(peer, request));
    tell(&update);
    struct testpeer_answer *answer = timed_answer(embed, &sample, peer, testpeer_sample(peer, table, 4096, 0, 0));
    assert_int_equal(answer->reply->sample->n_key, 4096);
    tell(&sample);
    Replay__Delete gone = REPLAY__DELETE__INIT;
    gone.table = (char *)(uintptr_t)table;
    gone.n_key = KEYS;
    gone.key = keys;
    TESTPEER_REQUEST(second, DELETE, delete_, &gone);
    answer = timed_answer(embed, &del, peer, testpeer_ask(peer, &second));
    assert_true(answer->reply->change->applied > 0);
    rest(embed, &del);
    judge(&del);
    testpeer_forget(peer);
}

static void reset(struct embed *embed, struct testpeer *peer, const char *table)
{
    struct watch watch = {.phase = "reset"};
    Replay__Request *request = REQUEST_OF(RESET, reset, Reset, .table = testpeer_text(table));
    struct testpeer_answer *answer = timed_answer(embed, &watch, peer, testpeer_ask(peer, request));
    assert_int_equal(answer->status, RP_OK);
    rest(embed, &watch);
    assert_int_equal(embed_table(embed, table)->in.size, 0);
    judge(&watch);
}

static void large_table(const char *sampler)
{
    const char *tables = textf(
        "  - {name: t, max_size: 2000000, sampler: {kind: %s}, remover: {kind: fifo}, limiter: {kind: none}%s}\n",
        sampler,
        strcmp(sampler, "uniform") == 0 ? ", extensions: [{kind: statistics}, {kind: priority_diffusion, radius: 2}]"
                                        : "");
    struct embed embed;
    embed_start_real(&embed, tables, "memory_limit: 4GiB\n");
    struct testpeer *peer = open_wide(&embed, "t");
    printf("sampler %s, %u items\n", sampler, n_items);
    fill(&embed, peer, "t", n_items, false);
    list_all(&embed, peer, "t");
    change_many(&embed, peer, "t", peer->key_base, n_items);
    reset(&embed, peer, "t");
    testpeer_settled(peer, 0);
    assert_int_equal(embed.broker->store.chunks, 0);
    embed_stop(&embed);
}

static void removal_en_masse(const char *unused)
{
    (void)unused;
    const char *tables = textf("  - {name: t, max_size: %u, soft_capacity: true, sampler: {kind: prioritized}, "
                               "remover: {kind: prioritized, exponent: -0.4}, limiter: {kind: none}}\n",
                               n_items / 5 * 4);
    struct embed embed;
    embed_start_real(&embed, tables, "memory_limit: 4GiB\n");
    struct table *table = embed_table(&embed, "t");
    table->removing = true; /* the surplus stays until it is removed below */
    struct testpeer *peer = open_wide(&embed, "t");
    fill(&embed, peer, "t", n_items - 20000 * (n_items > 100000), false);
    struct watch watch = {.phase = "removal en masse"};
    assert_true(table->in.size > table->config->max_size);
    int64_t start = cpu_now();
    table->removing = false;
    table_remove_surplus(table);
    watch_since(&watch, start);
    rest(&embed, &watch);
    assert_int_equal(table->in.size, table->config->max_size);
    judge(&watch);
    embed_stop(&embed);
}

/* A session with half a million chunks of its own and all the waiting items that it may have. */
static void session_release(const char *unused)
{
    (void)unused;
    struct embed embed;
    embed_start_real(&embed,
                     "  - {name: t, max_size: 2000000, limiter: {kind: none}}\n"
                     "  - {name: blocked, max_size: 1, limiter: {kind: queue}}\n",
                     "memory_limit: 4GiB\n");
    struct testpeer *peer = open_wide(&embed, "t");
    fill(&embed, peer, "t", n_items / 2, true);
    /* Items over chunks that are there, for a table that takes none of them. */
    struct session *session = session_find(&embed.broker->sessions, peer->session);
    uint32_t layout = testpeer_plain(peer, "blocked"), waiting = WINDOW_ITEMS;
    session->flows[1].allowed = waiting;
    for (uint32_t i = 0; i < waiting; i++) {
        testpeer_item(peer, layout, peer->key_base + i, 1, peer->oldest_chunk + i, 0, 1);
        if (i % PER_MESSAGE == PER_MESSAGE - 1) {
            testpeer_push(peer);
            embed_settle(&embed);
        }
    }
    struct watch watch = {.phase = "session release"};
    rest(&embed, &watch);
    printf("%u items are in, %llu wait\n", embed_table(&embed, "blocked")->in.size,
           (unsigned long long)embed_table(&embed, "blocked")->n_waiting_items);
    assert_true(embed_table(&embed, "blocked")->n_waiting_items + 10 > waiting);
    watch = (struct watch){.phase = "session release"};
    int64_t start = cpu_now();
    session_close(session);
    watch_since(&watch, start);
    rest(&embed, &watch);
    judge(&watch);
    struct watch second = {.phase = "reset"};
    start = cpu_now();
    assert_int_equal(table_reset(embed_table(&embed, "t"), NULL), RP_OK);
    watch_since(&second, start);
    rest(&embed, &second);
    judge(&second);
    embed_stop(&embed);
}

/* Many actors wait for the next version of the same parameters. */
static void parameter_waiters(const char *unused)
{
    (void)unused;
    enum { EACH = 900 };
    const uint32_t n_peers = n_items / 20000;
    char *name = testpeer_text("policy");
    struct embed embed;
    embed_start_real(&embed, "  - {name: t, max_size: 10}\n", NULL);
    struct testpeer *learner = testpeer_new(&embed);
    for (uint32_t p = 0; p < n_peers; p++) {
        struct testpeer *peer = testpeer_new(&embed);
        for (uint32_t i = 0; i < EACH; i++)
            testpeer_ask(peer, REQUEST_OF(PARAMS_GET, params_get, ParamsGet, .n_name = 1, .name = &name));
        embed_settle(&embed);
    }
    assert_int_equal(embed.broker->peers.waits.count, n_peers * EACH);
    struct watch watch = {.phase = "waking those that wait for parameters"};
    uint64_t id = testpeer_put(learner, name, 0, "weights", 7);
    assert_int_equal(timed_answer(&embed, &watch, learner, id)->status, RP_OK);
    rest(&embed, &watch);
    assert_int_equal(embed.broker->peers.waits.count, 0);
    judge(&watch);
    embed_stop(&embed);
}

/* All leases of a client end at the same time, of one item each or of the most that a sample takes: by their time, or with the client. */
static void leases_end(const char *how)
{
    struct embed embed;
    embed_start_real(
        &embed,
        "  - {name: t, max_size: 2000000, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: none}}\n",
        "memory_limit: 4GiB\n");
    struct table *table = embed_table(&embed, "t");
    struct leases *leases = &embed.broker->samples.leases;
    fill(&embed, open_wide(&embed, "t"), "t", n_items, false);
    bool gone = strcmp(how, "gone") == 0;
    struct lease *lease = NULL;
    for (uint32_t slot = 0, taken = 0; slot < n_items; slot++, taken++) {
        if (!lease || taken == (slot < n_items / 2 ? 1 : SAMPLE_MAX_ITEMS)) {
            if (lease)
                lease_restored(lease, true);
            lease = lease_make(leases, 1, slot + 1, table, gone ? 1000000 : 1);
            taken = 0;
        }
        lease_take(lease, slot);
    }
    lease_restored(lease, true);
    assert_int_equal(table->in.leased, n_items);
    struct watch watch = {.phase = gone ? "the end of a client with leases" : "the end of leases"};
    if (gone) { /* as a sweep finds it */
        LIST_FIRST(&leases->holders)->descriptor = 0;
        LIST_FIRST(&leases->holders)->connection = UINT64_MAX;
        for (uint32_t i = 0; i < 2; i++) {
            int64_t start = cpu_now();
            leases_sweep(leases);
            watch_since(&watch, start);
        }
    }
    while (table->in.leased)
        turn(&embed, &watch);
    rest(&embed, &watch);
    assert_int_equal(table_visible(table), table->in.size);
    assert_null(LIST_FIRST(&leases->holders));
    judge(&watch);
    embed_stop(&embed);
}

/* Another program may have had the caches or the huge pages: what is within the bar once in three tries is within it by
 * its own cost; what grows with the table never is. */
static void attempt(void (*run)(const char *), const char *what)
{
    uint32_t left = 3;
    do {
        too_long = 0;
        run(what);
    } while (too_long && --left);
    assert_int_equal(too_long, 0);
}

#define STRETCH(title, ...)                                                                                            \
    TEST(title)                                                                                                        \
    {                                                                                                                  \
        attempt(__VA_ARGS__);                                                                                          \
    }

STRETCH(a_large_prioritized_table_stays_within_the_bar, large_table, "prioritized")
STRETCH(a_large_uniform_table_stays_within_the_bar, large_table, "uniform")
STRETCH(a_large_max_heap_table_stays_within_the_bar, large_table, "max_heap")
STRETCH(removal_en_masse_stays_within_the_bar, removal_en_masse, NULL)
STRETCH(the_end_of_a_session_stays_within_the_bar, session_release, NULL)
STRETCH(waking_parameter_waiters_stays_within_the_bar, parameter_waiters, NULL)
STRETCH(leases_that_end_together_stay_within_the_bar, leases_end, "time")
STRETCH(the_end_of_a_client_with_leases_stays_within_the_bar, leases_end, "gone")

int main(void)
{
    broker_memory_settings();
    const char *sanitize = getenv("RP_SANITIZE");
    bool instrumented = sanitize && sanitize[0];
#ifdef __SANITIZE_ADDRESS__
    instrumented = true;
#endif
    if (instrumented) {
        n_items = 20000;
        measured = false;
    }
    return test_run(NULL, NULL);
}
