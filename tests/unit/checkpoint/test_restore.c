/* From files to a broker: the same state, and what differs from the configuration. */

#include "broker/checkpoint/loading.h"
#include "broker/checkpoint/restore.h"
#include "tests/support/naive.h"
#include "tests/support/world.h"

/* Selectors without chance give the same items in the same order; extensions know the items. */
static void check_selectors(struct world *old, struct world *new)
{
    static const char *const names[] = {"fifo", "queue", "stack", "teams", "pairs", "heap", "any"};
    for (uint32_t i = 0; i < 7; i++)
        twin_drain(&old->embed, &new->embed, names[i], i == 2 || i == 6);
}

TEST(a_broker_goes_on_from_its_files_again_and_again)
{
    struct world worlds[2], *now = &worlds[0], *next = &worlds[1];
    world_start(now, naive_seed(__func__), NULL);
    for (uint32_t round = 0; round < 6; round++) {
        world_run(now, 150);
        world_twin(now, next, NULL);
        twin_check(&now->embed, &next->embed);
        twin_check_files(&next->embed, &next->folder);
        if (round == 5)
            check_selectors(now, next);
        world_follow(next, now);
        world_kill(now);
        struct world *swap = now;
        now = next;
        next = swap;
    }
    world_run(now, 150);
    twin_check_files(&now->embed, &now->folder);
    world_stop(now);
}

/* Ties in a heap go by the last touch, also over a restart. */
TEST(equal_priorities_keep_their_order)
{
    struct world old, new;
    world_start(&old, 3, NULL);
    struct testpeer *peer = old.peers[0];
    testpeer_inserted(peer, "heap", 1, 20, 1);
    uint64_t keys[] = {7, 3, 12};
    double same[] = {1, 1, 1};
    testpeer_update(peer, "heap", 3, keys, same);
    embed_settle(&old.embed);
    world_twin(&old, &new, NULL);
    twin_drain(&old.embed, &new.embed, "heap", true);
    world_kill(&new);
    world_kill(&old);
}

#define PLAIN "  - {name: t, max_size: %d, sampler: {kind: uniform}, remover: {kind: fifo}, limiter: {kind: none}%s}\n"

struct pair_of {
    struct twin_folder folder;
    struct embed embed;
};

static void begin(struct pair_of *self, uint32_t items)
{
    twin_folder_init(&self->folder);
    embed_start(&self->embed, textf(PLAIN, 100, ""), twin_config(&self->folder, NULL));
    struct testpeer *peer = testpeer_opened(&self->embed, false);
    testpeer_inserted(peer, "t", 1, items, 1);
    assert_int_equal(embed_table(&self->embed, "t")->in.size, items);
    twin_kill(&self->embed);
}

static void again(struct pair_of *self, const char *tables, const char *more)
{
    embed_start(&self->embed, tables, twin_config(&self->folder, more));
}

static void end(struct pair_of *self)
{
    embed_stop(&self->embed);
    twin_folder_fini(&self->folder);
}

FIXTURE(struct pair_of, (void), end)

/* The oldest go, as the remover says, and the journal knows: the next start has the same. So it has from a checkpoint,
 * which names slots beyond the size of the table. */
CASE(a_smaller_table_keeps_what_fits)
{
    begin(f, 60);
    for (uint32_t round = 0; round < 4; round++) {
        again(f, textf(PLAIN, 10, ""), NULL);
        const struct table *table = embed_table(&f->embed, "t");
        assert_int_equal(table->in.size, 10);
        for (uint64_t key = 1; key <= 60; key++)
            assert_int_equal(table_find(table, key) != KEYMAP_NONE, key > 50);
        assert_true(table->limiter.inserts == 60 && table->limiter.deletes == 50);
        embed_settle(&f->embed);
        if (round > 0)
            twin_checkpoint(&f->embed);
        if (round < 3)
            twin_kill(&f->embed);
    }
    /* It works as any other: an insert takes a slot that exists. */
    struct testpeer *peer = testpeer_opened(&f->embed, false);
    testpeer_inserted(peer, "t", 1000, 30, 1);
    assert_int_equal(embed_table(&f->embed, "t")->in.size, 10);
    twin_check_files(&f->embed, &f->folder);
}

CASE(times_sampled_above_a_new_limit_remove_the_item)
{
    begin(f, 5);
    again(f, textf(PLAIN, 100, ""), NULL);
    testpeer_sampled(testpeer_new(&f->embed), "t", 50);
    uint32_t often = 0;
    for (uint32_t slot = 0; slot < 5; slot++)
        often += embed_table(&f->embed, "t")->in.items[slot].times_sampled >= 10;
    assert_true(often > 0);
    twin_kill(&f->embed);
    again(f, textf(PLAIN, 100, ", max_times_sampled: 10"), NULL);
    const struct table *table = embed_table(&f->embed, "t");
    assert_true(table->in.size == 5 - often && table->limiter.samples == 50);
}

/* Starts a broker from the files with this metadata, and checks what it shows of its table. */
static void metadata_becomes(struct twin_folder *folder, const char *configured, const char *want, size_t fields)
{
    struct embed embed;
    embed_start(&embed, textf(PLAIN, 100, configured), twin_config(folder, NULL));
    struct testpeer *peer = testpeer_opened(&embed, false);
    const Replay__TableInfo *info = testpeer_table_info(peer, "t");
    assert_string_equal(info->metadata, want);
    assert_int_equal(info->n_signature, fields);
    assert_false(info->prescribed);
    if (fields) {
        assert_string_equal(info->signature[0]->name, "x");
        assert_string_equal(info->signature[0]->dtype, "uint64");
        assert_int_equal(info->signature[0]->n_shape, 0); /* squeezed */
    } else {
        testpeer_inserted(peer, "t", 1, 3, 1);
        assert_int_equal(testpeer_table_info(peer, "t")->n_signature, 1);
    }
    twin_checkpoint(&embed);
    twin_kill(&embed);
}

TEST(metadata_is_kept_unless_the_configuration_has_other)
{
    struct twin_folder folder;
    twin_folder_init(&folder);
    metadata_becomes(&folder, ", metadata: 'unit: meters'", "unit: meters", 0);
    metadata_becomes(&folder, "", "unit: meters", 1);
    metadata_becomes(&folder, "", "unit: meters", 1);
    metadata_becomes(&folder, ", metadata: 'unit: miles'", "unit: miles", 1);
    metadata_becomes(&folder, ", metadata: ''", "unit: miles", 1);
    twin_folder_fini(&folder);
}

#define OTHER "  - {name: other, max_size: 5, sampler: {kind: fifo}, limiter: {kind: none}}\n"

/* Items are dropped also where no checkpoint can say so. */
CASE(tables_come_and_go)
{
    begin(f, 20);
    embed_start(&f->embed, OTHER,
                textf("folder: %s\njournal: off\ncheckpoint: {keep: 0, load: drop_tables}\n", f->folder.path));
    twin_kill(&f->embed);
    again(f, OTHER, "checkpoint: {load: drop_tables}\n");
    assert_int_equal(embed_table(&f->embed, "other")->in.size, 0);
    struct testpeer *peer = testpeer_opened(&f->embed, false);
    testpeer_inserted(peer, "other", 500, 3, 1);
    twin_kill(&f->embed);
    /* In another order, with a third. */
    again(f,
          textf("  - {name: third, max_size: 5, sampler: {kind: fifo}, limiter: {kind: none}}\n" OTHER PLAIN, 100, ""),
          NULL);
    assert_int_equal(embed_table(&f->embed, "other")->in.size, 3);
    assert_true(table_find(embed_table(&f->embed, "other"), 501) != KEYMAP_NONE);
    assert_int_equal(embed_table(&f->embed, "third")->in.size, 0);
}

CASE(extensions_know_what_was_restored)
{
    begin(f, 3);
    again(f, textf(PLAIN, 100, ", extensions: [{kind: priority_diffusion}]"), NULL);
    const struct table *table = embed_table(&f->embed, "t");
    testpeer_update(testpeer_new(&f->embed), "t", 1, (const uint64_t[]){2}, (const double[]){8});
    assert_true(table->in.items[table_find(table, 1)].priority == 4);
}

static struct broker *refused(const struct twin_folder *folder, const char *tables, const char *more, rp_error *error)
{
    char yaml[2048], problems[1024];
    struct broker_config config;
    snprintf(yaml, sizeof yaml,
             "service: inproc://service\ningest: inproc://ingest\nevents: inproc://events\n%s\ntables:\n%s",
             twin_config(folder, more), tables);
    if (!embed_read_config(yaml, &config, problems, sizeof problems))
        fail_msg("%s", problems);
    struct broker *broker = broker_new(&config, clock_system(), NULL, error);
    assert_null(broker);
    schema_free(&broker_schema, &config);
    return broker;
}

/* The sentence names the field and both types; the files stay as they are. */
CASE(another_signature_is_refused)
{
    static const char right[] = ", signature: {x: uint64}";
    twin_folder_init(&f->folder);
    again(f, textf(PLAIN, 100, right), NULL);
    struct testpeer *peer = testpeer_opened(&f->embed, false);
    Replay__Field field = REPLAY__FIELD__INIT;
    field.name = testpeer_text("x");
    field.count = 1;
    field.squeeze = true;
    uint32_t layout = testpeer_layout(peer, "t", 1, &field);
    uint64_t value = 1;
    const void *blocks[] = {&value};
    testpeer_item(peer, layout, 1, 1, testpeer_chunk(peer, 1, blocks, false), 0, 1);
    testpeer_pushed(peer);
    assert_int_equal(embed_table(&f->embed, "t")->in.size, 1);
    twin_kill(&f->embed);
    refused(&f->folder, textf(PLAIN, 100, ", signature: {x: [float32, 4]}"), NULL, &err);
    assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    HAS(err.text, "'t'", "'x' is uint64", "float32", "checkpoint.load");
    err = (rp_error){0};
    refused(&f->folder, textf(PLAIN, 100, ", signature: {y: uint64}"), NULL, &err);
    assert_non_null(strstr(err.text, "'y'"));
    again(f, textf(PLAIN, 100, right), NULL);
    assert_int_equal(embed_table(&f->embed, "t")->in.size, 1);
}

CASE(a_limiter_of_another_kind_starts_balanced)
{
    begin(f, 60);
    again(f,
          "  - {name: t, max_size: 100, sampler: {kind: uniform}, remover: {kind: fifo},\n"
          "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 10, error_buffer: 40}}\n",
          NULL);
    const struct table *table = embed_table(&f->embed, "t");
    assert_int_equal(table->limiter.inserts, 60);
    assert_true(limiter_insertable(&table->limiter, 1) == 1 && limiter_sampleable(&table->limiter, 1) == 1);
}

#define RATIO(spi)                                                                                                     \
    "  - {name: t, max_size: 100, sampler: {kind: uniform}, remover: {kind: fifo},\n"                                  \
    "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: " #spi ", min_size: 10, error_buffer: 40}}\n"

static void check_ratio(struct pair_of *pair, const char *tables, double spi)
{
    again(pair, tables, NULL);
    const struct limiter *limiter = &embed_table(&pair->embed, "t")->limiter;
    assert_true(limiter->samples_per_insert == spi);
    assert_true(limiter->min_diff == 10 * spi - 40 && limiter->max_diff == 10 * spi + 40);
    /* The cursor is where it was between its bounds. */
    assert_true(limiter->inserts == 60 && limiter_cursor(limiter) == 10 * spi);
}

/* A ratio that was changed while the broker ran holds until the configuration says something else. */
CASE(a_change_of_a_limiter_survives_until_the_configuration_changes)
{
    begin(f, 60);
    check_ratio(f, RATIO(32), 32);
    struct testpeer *peer = testpeer_opened(&f->embed, false);
    assert_int_equal(TESTPEER_LIMIT(peer, "t", SAMPLES_PER_INSERT, samples_per_insert, 4), RP_OK);
    twin_kill(&f->embed);
    check_ratio(f, RATIO(32), 4);
    twin_checkpoint(&f->embed);
    twin_kill(&f->embed);
    check_ratio(f, RATIO(32), 4);
    twin_kill(&f->embed);
    check_ratio(f, RATIO(16), 16);
    twin_kill(&f->embed);
    check_ratio(f, RATIO(32), 32);
}

CASE(starting_from_nothing_or_from_a_number)
{
    begin(f, 60);
    refused(&f->folder, textf(PLAIN, 100, ""), "checkpoint: {load: 12}\n", &err);
    assert_int_equal(err.status, RP_NOT_FOUND);
    again(f, textf(PLAIN, 100, ""), "checkpoint: {load: none}\n");
    assert_int_equal(embed_table(&f->embed, "t")->in.size, 0);
    struct testpeer *peer = testpeer_opened(&f->embed, false);
    testpeer_inserted(peer, "t", 900, 4, 1);
    twin_kill(&f->embed);
    /* What was before is no part of the state any more. */
    again(f, textf(PLAIN, 100, ""), NULL);
    assert_int_equal(embed_table(&f->embed, "t")->in.size, 4);
}

/* From a checkpoint alone, selectors go on with the very same picks. */
TEST(picks_go_on_from_an_exact_checkpoint)
{
    struct world old, new;
    world_start(&old, naive_seed(__func__), NULL);
    world_run(&old, 300);
    twin_checkpoint(&old.embed);
    world_twin(&old, &new, NULL);
    twin_check(&old.embed, &new.embed);
    static const char *const names[] = {"prio", "any", "copies", "heap", "fifo"};
    for (uint32_t i = 0; i < 5; i++) {
        struct table *a = embed_table(&old.embed, names[i]), *b = embed_table(&new.embed, names[i]);
        for (uint32_t k = 0; k < 500 && a->in.size; k++) {
            uint32_t x, y;
            double p, q;
            assert_int_equal(a->sampler_ops->pick(a->in.sampler, 1, &x, &p), 1);
            assert_int_equal(b->sampler_ops->pick(b->in.sampler, 1, &y, &q), 1);
            assert_int_equal(x, y);
            assert_true(p == q);
        }
        /* After a reset, too. */
        uint8_t state_a[4096], state_b[4096];
        assert_int_equal(table_reset(a, NULL), RP_OK);
        assert_int_equal(table_reset(b, NULL), RP_OK);
        uint32_t n = a->sampler_ops->save ? a->sampler_ops->save(a->in.sampler, state_a, sizeof state_a) : 0;
        if (n) {
            assert_int_equal(b->sampler_ops->save(b->in.sampler, state_b, sizeof state_b), n);
            assert_memory_equal(state_a, state_b, n);
        }
    }
    world_kill(&new);
    world_kill(&old);
}

/* Keys stay those of their sessions over a restart, where ordinals have come round, too. */
CASE(keys_go_on_after_a_restart)
{
    twin_folder_init(&f->folder);
    again(f, textf(PLAIN, 100, ""), NULL);
    f->embed.broker->tables.ordinals.next = KEY_ORDINALS - 1;
    struct testpeer *old[3];
    uint64_t bases[3];
    for (uint32_t i = 0; i < 3; i++) {
        old[i] = testpeer_opened(&f->embed, false);
        bases[i] = old[i]->key_base;
        testpeer_insert(old[i], "t", bases[i], 2, 1);
    }
    embed_settle(&f->embed);
    assert_int_equal(old[0]->ordinal, KEY_ORDINALS - 1);
    assert_int_equal(old[1]->ordinal, 1);
    /* The last one ends; its items stay. */
    assert_int_equal(testpeer_await(old[2], testpeer_bye(old[2], NO_TIMEOUT))->status, RP_OK);
    uint8_t id[WIRE_SESSION_BYTES];
    memcpy(id, old[1]->session, sizeof id);
    twin_kill(&f->embed);
    again(f, textf(PLAIN, 100, ""), NULL);
    const struct session *session = session_find(&f->embed.broker->sessions, id);
    assert_int_equal(session->keys.base, bases[1]);
    assert_int_equal(session->keys.count, KEY_COUNTERS);
    for (uint32_t i = 0; i < 3; i++) {
        f->embed.broker->tables.ordinals.next = i == 0 ? KEY_ORDINALS - 1 : i;
        struct testpeer *peer = testpeer_opened(&f->embed, false);
        for (uint32_t k = 0; k < 3; k++)
            assert_int_not_equal(peer->key_base, bases[k]);
    }
}

TEST(pairs_are_sorted_and_equal_ones_stay_in_order)
{
    struct rng rng = naive_rng(__func__);
    for (uint32_t round = 0; round < 200; round++) {
        uint64_t n = rng_next(&rng) % 300, bits = rng_next(&rng) % 64;
        struct pair *pairs = calloc(n + 1, sizeof *pairs);
        for (uint64_t i = 0; i < n; i++)
            pairs[i] = (struct pair){rng_next(&rng) >> bits, i};
        assert_true(pairs_sort(pairs, n));
        for (uint64_t i = 1; i < n; i++)
            assert_true(pairs[i - 1].key < pairs[i].key ||
                        (pairs[i - 1].key == pairs[i].key && pairs[i - 1].value < pairs[i].value));
        free(pairs);
    }
}
