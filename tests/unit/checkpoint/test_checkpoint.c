/* Checkpoints: what is written in slices, while everything changes, is the state at one instant. */

#include "broker/checkpoint/checkpoint.h"
#include "tests/support/naive.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define TABLES 7u
#define SIZE 300u

static const char tables[] =
    "  - {name: fifo, max_size: 300, sampler: {kind: fifo}, remover: {kind: lifo}, limiter: {kind: none}}\n"
    "  - {name: lifo, max_size: 300, sampler: {kind: lifo}, remover: {kind: min_heap}, limiter: {kind: none}}\n"
    "  - {name: uniform, max_size: 300, sampler: {kind: uniform}, remover: {kind: fifo}, limiter: {kind: none}}\n"
    "  - {name: min, max_size: 300, sampler: {kind: min_heap}, remover: {kind: uniform}, limiter: {kind: none}}\n"
    "  - {name: max, max_size: 300, sampler: {kind: max_heap}, remover: {kind: fifo}, limiter: {kind: none}}\n"
    "  - {name: weighted, max_size: 300, sampler: {kind: prioritized, exponent: 0.6},\n"
    "     remover: {kind: prioritized, exponent: -1}, limiter: {kind: none}}\n"
    "  - {name: once, max_size: 300, max_times_sampled: 1, sampler: {kind: uniform}, limiter: {kind: none}}\n";

/* A broker, and the random changes that are made to it. */
struct side {
    struct embed embed;
    struct rng rng;
    uint64_t next_key;
};

/* The broker with files, and one without that makes the same changes later: until then it has the state of an earlier instant. */
static struct side real, shadow;
static struct broker *broker; /* the one with files */
static struct twin_folder folder;
static struct columns *columns;

/* ---- a folder, brokers ---- */

static int set_up(void **state)
{
    (void)state;
    twin_folder_init(&folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    twin_folder_fini(&folder);
    return 0;
}

static uint32_t files(const char *prefix)
{
    uint32_t n;
    files_like(textf("%s/%s*", folder.path, prefix), &n);
    return n;
}

static void start(bool journal, uint64_t seed, const char *extra)
{
    embed_start(&real.embed, tables,
                textf("folder: %s\n%s%s", folder.path, journal ? "" : "journal: off\ncheckpoint: {every: 0s}\n",
                      extra ? extra : ""));
    embed_start(&shadow.embed, tables, NULL);
    real.rng = shadow.rng = rng_of(seed);
    real.next_key = shadow.next_key = 0;
    broker = real.embed.broker;
    broker->checkpoints->slice = 64;
    Replay__Column column = REPLAY__COLUMN__INIT, *list = &column;
    column.name = (char[]){"x"};
    column.dtype = (char[]){"uint64"};
    columns = must(columns_new(&list, 1, &err));
}

static void stop(void)
{
    columns_release(columns);
    embed_stop(&shadow.embed);
    embed_stop(&real.embed);
}

/* ---- changes ---- */

static uint32_t below(struct side *self, uint32_t n)
{
    return (uint32_t)rng_below(&self->rng, n);
}

/* One of a few layouts of a table. */
static uint32_t layout_of(struct side *self, uint32_t table)
{
    Replay__Layout wire = REPLAY__LAYOUT__INIT;
    Replay__Field field = REPLAY__FIELD__INIT, *fields = &field;
    field.name = (char[]){"a"};
    field.name[0] = (char)('a' + below(self, 5));
    wire.table = (char *)(uintptr_t)self->embed.broker->tables.list[table].name;
    wire.n_fields = 1;
    wire.fields = &fields;
    struct layouts *layouts = &self->embed.broker->layouts;
    struct layout *layout = must(layouts_intern(layouts, &wire, columns, table, (struct signature){0}, &err));
    return layout->id;
}

#define CHUNK_MOST 320u

/* Its data are the item's key and its place in the item. */
static struct chunk *chunk_of(struct side *self, uint64_t key, uint32_t place, uint32_t bytes)
{
    uint64_t data[CHUNK_MOST / 8] = {key, place};
    struct chunk *chunk = store_add(&self->embed.broker->store, 1, data, bytes, bytes, NULL);
    assert_non_null(chunk);
    chunk->length = 1;
    chunk->session = 3;
    *chunk_block_sizes(chunk) = bytes;
    *chunk_block_codecs(chunk) = 0;
    return chunk;
}

static void insert(struct side *self, uint32_t t)
{
    struct arrival arrival = {
        .key = ++self->next_key, .priority = (double)below(self, 20), .policy = below(self, 1000)};
    uint32_t n = below(self, 4) ? 1 : 1 + below(self, 3);
    arrival.span = (struct span){.n = n, .length = n, .layout = layout_of(self, t)};
    if (n > 1) {
        arrival.span.many = malloc(n * sizeof(*arrival.span.many));
        self->embed.broker->store.outside += span_list_bytes(n);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct chunk *chunk = chunk_of(self, arrival.key, i, 16 + 8 * below(self, 38));
        if (n > 1)
            arrival.span.many[i] = chunk;
        else
            arrival.span.one = chunk;
    }
    ok(table_insert(&self->embed.broker->tables.list[t], &arrival, &err));
}

static bool any_slot(struct side *self, const struct table *table, uint32_t *slot)
{
    if (table->in.size == 0)
        return false;
    do
        *slot = below(self, table->in.high);
    while (!table->in.items[*slot].span.n);
    return true;
}

static void sample(struct table *table, uint32_t n)
{
    uint32_t slot;
    double probability;
    for (; n > 0 && table->in.size; n--) {
        assert_int_equal(table->sampler_ops->pick(table->in.sampler, 1, &slot, &probability), 1);
        table_sampled(table, slot);
    }
}

static void change(struct side *self)
{
    uint32_t t = below(self, TABLES), slot;
    struct broker *to = self->embed.broker;
    struct table *table = &to->tables.list[t];
    uint32_t what = below(self, 100);
    self->embed.manual.now_ns += below(self, 1000);
    to->loop.now_ns = self->embed.manual.now_ns;
    if (what < 40)
        insert(self, t);
    else if (what < 55 && any_slot(self, table, &slot))
        table_remove(table, slot);
    else if (what < 75 && any_slot(self, table, &slot))
        table_update(table, 1, &slot, &(double){below(self, 20)});
    else if (what < 92)
        sample(table, 1 + below(self, 3));
    else if (what < 96) {
        const char *name = textf("c%u", below(self, 9));
        params_restore_counter(&to->params, name, below(self, 1000));
    } else if (what < 98) {
        uint8_t value[600];
        const char *name = textf("s%u", below(self, 5));
        memset(value, (int)below(self, 256), sizeof value);
        uint32_t version = below(self, 1000) + 1, size = below(self, sizeof value);
        params_restore_slot(&to->params, name, version, to->loop.now_ns, value, size);
    } else if (what == 98 && below(self, 4) == 0) {
        assert_int_equal(table_reset(table, NULL), RP_OK);
    } else if (what == 99 && below(self, 3) == 0) {
        while (any_slot(self, table, &slot) && table->in.size > 5)
            table_remove(table, slot);
    }
}

/* ---- what the files say ---- */

static uint64_t number; /* of the newest checkpoint */

/* Ranks and generators of the selectors, which files alone do not keep exactly. */
static void check_selectors(const struct table *table, const struct loaded_table *got)
{
    const rp_selector_ops *ops[2] = {table->sampler_ops, table->remover_ops};
    void *states[2] = {table->in.sampler, table->in.remover};
    for (uint32_t w = 0; w < 2; w++) {
        uint8_t saved[64];
        uint32_t bytes = ops[w]->save ? ops[w]->save(states[w], saved, sizeof saved) : 0;
        assert_int_equal(got->selector_bytes[w], bytes);
        if (bytes)
            assert_memory_equal(got->selector[w], saved, bytes);
        for (uint32_t slot = 0; slot < table->in.high; slot++)
            if (got->rank && table->in.items[slot].span.n)
                assert_int_equal(got->rank[slot][w], ops[w]->order ? ops[w]->order(states[w], slot) : 0);
    }
}

/* The checkpoint as the files have it is the state of this broker. */
static void check_files(const struct side *state)
{
    struct twin_files files;
    twin_load(&files, &real.embed, &folder, number);
    assert_int_equal(files.loading.files.checkpoint, number);
    twin_check_loaded(&state->embed, &files);
    for (uint32_t t = 0; t < TABLES; t++) {
        const struct table *table = &state->embed.broker->tables.list[t], *got = files.loading.tables[t].table;
        assert_int_equal(got->stats.updates, table->stats.updates);
        assert_int_equal(got->stats.evicted, table->stats.evicted);
        check_selectors(table, &files.loading.tables[t]);
    }
    twin_unload(&files);
}

/* ---- making one ---- */

static void one_slice(void)
{
    chores_run(&broker->loop.chores, &broker->loop.clock, 0);
    stream_flush(broker->stream);
    stream_run(broker->stream);
    checkpoints_run(broker->checkpoints);
}

static void begin(void)
{
    number = broker->checkpoints->next;
    assert_int_equal(checkpoint_start(broker->checkpoints, CHECKPOINT_ASKED, NULL, NULL), RP_OK);
    assert_true(checkpoints_run(broker->checkpoints));
    assert_true(checkpoint_is_running(broker->checkpoints));
}

static void end(void)
{
    for (uint32_t i = 0; checkpoint_is_running(broker->checkpoints); i++) {
        one_slice();
        if (!broker->loop.chores.first && checkpoint_is_running(broker->checkpoints))
            zmq_poll(&(zmq_pollitem_t){disk_writer_socket(broker->stream->disk_writer), 0, ZMQ_POLLIN, 0}, 1, 100);
        if (i > 100000)
            fail_msg("the checkpoint does not end");
    }
}

/* The one that runs fails, as the disk writer tells it. */
static void fail_one(void)
{
    checkpoint_finished(broker->checkpoints, number, "no room");
    for (uint32_t i = 0; i < 100 && checkpoint_is_running(broker->checkpoints); i++)
        one_slice();
    assert_false(checkpoint_is_running(broker->checkpoints));
}

static void make_one(void)
{
    begin();
    end();
    assert_int_equal(broker->checkpoints->last.number, number);
}

/* ---- tests ---- */

TEST(slices_add_up_to_one_instant)
{
    struct rng rng = naive_rng(__func__);
    for (uint32_t round = 0; round < 4; round++) {
        twin_folder_init(&folder);
        start(round % 2, rng_next(&rng), NULL);
        uint64_t changes = rng_below(&rng, 3000);
        uint32_t bases = 0;
        for (uint64_t i = 0; i < changes; i++)
            change(&real);
        for (uint32_t n = 0; n < 12; n++) {
            for (; changes > 0; changes--)
                change(&shadow);
            begin();
            bases += broker->checkpoints->running->base == 0;
            uint64_t often = 1 + rng_below(&rng, 40);
            while (checkpoint_is_running(broker->checkpoints)) {
                for (uint64_t i = rng_below(&rng, often); i > 0; i--, changes++)
                    change(&real);
                one_slice();
                if (broker->checkpoints->running && broker->checkpoints->running->ended)
                    end();
            }
            assert_int_equal(broker->checkpoints->last.number, number);
            check_files(&shadow);
            for (uint64_t i = rng_below(&rng, 200); i > 0; i--, changes++)
                change(&real);
        }
        assert_true(bases >= 1 && bases < 12);
        stop();
        twin_folder_fini(&folder);
    }
}

TEST(a_change_is_small, set_up, tear_down)
{
    start(false, 3, NULL);
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t i = 0; i < SIZE; i++)
            insert(&real, t);
    make_one();
    uint64_t first = broker->checkpoints->last.written_bytes;
    for (uint32_t i = 0; i < TABLES * SIZE / 100; i++)
        insert(&real, i % TABLES);
    make_one();
    assert_int_equal(broker->checkpoints->last.based_on, 1);
    print_message("first %llu bytes, second %llu\n", (unsigned long long)first,
                  (unsigned long long)broker->checkpoints->last.written_bytes);
    assert_true(broker->checkpoints->last.written_bytes * 20 <= first);
    check_files(&real);
    stop();
}

TEST(old_ones_go_and_foreign_files_stay, set_up, tear_down)
{
    start(true, 4, "checkpoint: {keep: 2, every: 0s}\n");
    static const char *const foreign[] = {"checkpoint-00000900.replay", "segment-00000002.replay.bak", "checkpoint-1"};
    for (uint32_t i = 0; i < 3; i++)
        file_put(file_in(folder.path, foreign[i]), "mine");
    broker->stream->segment_bytes = 20000;
    for (uint32_t n = 0; n < 12; n++) {
        for (uint32_t i = 0; i < 400; i++) {
            insert(&real, below(&real, TABLES));
            if (i % 20 == 0)
                one_slice();
        }
        make_one();
    }
    check_files(&real);
    uint32_t kept = broker->checkpoints->kept.n;
    assert_true(kept >= 2 && kept <= 2 + CHECKPOINT_LINKS);
    for (uint32_t i = 0; i < kept; i++) /* what is kept has all that it needs */
        for (uint32_t s = 0; s < broker->checkpoints->kept.list[i].n_segments; s++)
            assert_non_null(segments_find(&broker->stream->segments, broker->checkpoints->kept.list[i].segments[s]));
    uint32_t segments = broker->stream->segments.n;
    print_message("%u checkpoints, %u segments kept of %llu\n", kept, segments,
                  (unsigned long long)broker->stream->segment);
    stream_hand_over(broker->stream); /* the newest is a file, too */
    wait_until(files("segment-") == segments + 1);
    assert_true(segments < broker->stream->segment);
    stop();
    assert_int_equal(files("checkpoint-"), kept + 2);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(file_exists(file_in(folder.path, foreign[i])));
}

/* An item over a chunk that something else holds, too. */
static void insert_over(struct side *self, struct chunk *chunk)
{
    struct arrival arrival = {.key = ++self->next_key, .priority = 1, .span = {.n = 1, .length = 1, .one = chunk}};
    arrival.span.layout = layout_of(self, 0);
    chunk_hold(chunk);
    assert_int_equal(table_insert(&self->embed.broker->tables.list[0], &arrival, NULL), RP_OK);
}

static void remove_newest(struct side *self)
{
    struct table *table = &self->embed.broker->tables.list[0];
    table_remove(table, table_find(table, self->next_key));
}

static void move_and_check(bool journal)
{
    broker->stream->segment_bytes = 8192;
    for (uint32_t i = 0; i < 300; i++) {
        insert(&real, 0);
        insert(&shadow, 0);
        if (i % 20 == 0)
            make_one(); /* chunks come to many segments */
        if (i % 5 == 0)
            one_slice();
    }
    make_one();
    uint32_t many = broker->stream->segments.n;
    struct table *table = &broker->tables.list[0];
    for (uint32_t slot = 0; slot < table->in.high; slot++)
        if (slot % 5 && table->in.items[slot].span.n) {
            table_remove(table, slot);
            table_remove(&shadow.embed.broker->tables.list[0], slot);
        }
    begin();
    assert_int_equal(broker->checkpoints->running->base, 0);
    /* An item that comes after the instant names a chunk where it is before it is moved. */
    uint32_t first = 0;
    while (table->in.items[first].span.n != 1)
        first++;
    struct chunk *shared = table->in.items[first].span.one;
    uint64_t place = shared->at;
    insert_over(&real, shared);
    end();
    check_files(&shadow);
    assert_true(shared->at != place);
    remove_newest(&real);
    if (journal)
        assert_non_null(segments_find(&broker->stream->segments, disk_number(place)));
    make_one(); /* and it does not go on for ever */
    assert_true(broker->checkpoints->last.based_on != 0 || journal);
    check_files(&real);
    insert(&real, 0);
    broker->checkpoints->base = 0; /* a whole one, so that no base keeps files */
    make_one();
    uint32_t few = broker->stream->segments.n;
    print_message("%u segments, then %u\n", many, few);
    assert_true(many > 8 && few < many / 2);
    check_files(&real);
}

TEST(what_lives_in_dead_segments_is_moved)
{
    for (int journal = 0; journal < 2; journal++) {
        twin_folder_init(&folder);
        start(journal, 5, journal ? "checkpoint: {keep: 1, every: 0s}\n" : NULL);
        real.embed.config.checkpoint_keep = 1;
        move_and_check(journal);
        stop();
        twin_folder_fini(&folder);
    }
}
TEST(after_a_failure_the_next_is_whole, set_up, tear_down)
{
    start(false, 6, NULL);
    for (uint32_t i = 0; i < 2000; i++)
        change(&real);
    make_one();
    for (uint32_t when = 0; when < 3; when++) {
        for (uint32_t i = 0; i < 50; i++)
            change(&real);
        begin();
        assert_true(broker->checkpoints->running->base != 0);
        for (uint32_t i = 0; i < when * 2; i++) {
            change(&real);
            one_slice();
        }
        fail_one();
        make_one();
        assert_int_equal(broker->checkpoints->last.based_on, 0);
        check_files(&real);
    }
    stop();
}

static struct chunk *held[20000];
static uint32_t n_held;

/* A segment that is full of chunks which no item has, but sessions hold; and a checkpoint after it. */
static uint64_t hold_segment(void)
{
    broker->stream->segment_bytes = 20000;
    uint64_t segment = broker->stream->segment;
    for (n_held = 0; broker->stream->segment == segment; n_held++) {
        assert_true(n_held < 20000);
        held[n_held] = chunk_of(&real, 1, 0, CHUNK_MOST);
        insert_over(&real, held[n_held]);
        remove_newest(&real);
        one_slice();
    }
    const struct segment_use *use = segments_find(&broker->stream->segments, segment);
    assert_true(use->live > use->bytes / 2); /* it is not worth moving, into however many records it was cut */
    make_one();
    return segment;
}

static void let_go(void)
{
    while (n_held > 0)
        store_release(&broker->store, held[--n_held]);
}

/* The journal since the last whole one names a segment that was dead when the failed one began. */
TEST(a_failed_one_lets_no_segment_go, set_up, tear_down)
{
    start(true, 9, "checkpoint: {keep: 1, every: 0s}\n");
    uint64_t segment = hold_segment();
    insert_over(&real, held[0]);
    remove_newest(&real);
    let_go();
    assert_int_equal(segments_find(&broker->stream->segments, segment)->live, 0);
    begin();
    fail_one();
    broker->checkpoints->low = true; /* then all that can go goes */
    checkpoints_clean(broker->checkpoints);
    assert_non_null(segments_find(&broker->stream->segments, segment));
    make_one();
    assert_null(segments_find(&broker->stream->segments, segment));
    stop();
}

/* The journal has an item that does not fit the configuration any more. Until its removal is written, too, its file stays. */
TEST(what_the_start_removes_stays_for_the_next, set_up, tear_down)
{
    start(true, 11, "checkpoint: {keep: 1, every: 0s}\n");
    uint64_t segment = hold_segment();
    insert(&real, 0);
    insert_over(&real, held[0]);
    let_go();
    twin_kill(&real.embed); /* embed_stop would empty the tables */
    embed_start(&real.embed, "  - {name: fifo, max_size: 1, sampler: {kind: fifo}, remover: {kind: lifo}}\n",
                textf("folder: %s\ncheckpoint: {keep: 1, every: 0s}\n", folder.path));
    broker = real.embed.broker;
    assert_int_equal(broker->tables.list[0].in.size, 1);
    assert_int_equal(segments_find(&broker->stream->segments, segment)->live, 0);
    broker->checkpoints->low = true;
    checkpoints_clean(broker->checkpoints);
    assert_non_null(segments_find(&broker->stream->segments, segment));
    stop();
}

/* A base would keep the files that are to go. */
TEST(one_for_space_is_whole, set_up, tear_down)
{
    start(true, 10, "checkpoint: {keep: 1, every: 0s}\n");
    for (uint32_t i = 0; i < 200; i++)
        insert(&real, 2);
    make_one();
    for (uint32_t i = 0; i < 2; i++) {
        insert(&real, 2);
        assert_int_equal(checkpoint_start(broker->checkpoints, i ? CHECKPOINT_SPACE : CHECKPOINT_JOURNAL, NULL, NULL),
                         RP_OK);
        assert_true(checkpoints_run(broker->checkpoints));
        end();
        assert_int_equal(broker->checkpoints->last.number, i + 2);
        assert_int_equal(broker->checkpoints->last.based_on, i ? 0 : 1);
    }
    stop();
}

/* How long the journal is counts from the last one that is whole, whatever failed or was killed since. */
TEST(the_journal_is_counted_from_the_last_one, set_up, tear_down)
{
    const char *extra = "checkpoint: {every: 0s}\n";
    start(true, 8, extra);
    make_one();
    for (uint32_t i = 0; i < 2000; i++)
        change(&real);
    stream_hand_over(broker->stream);
    uint64_t bytes = broker->stream->journal_bytes;
    assert_true(bytes > 100000);
    begin();
    assert_true(broker->stream->journal_bytes < bytes / 2);
    fail_one();
    assert_true(broker->stream->journal_bytes >= bytes);
    stop();
    start(true, 8, extra);
    assert_true(broker->stream->journal_bytes >= bytes);
    stop();
}

TEST(one_that_waits_for_the_disk_sleeps, set_up, tear_down)
{
    start(false, 7, NULL);
    for (uint32_t i = 0; i < 300; i++)
        insert(&real, 0);
    begin();
    uint64_t given = broker->stream->given;
    broker->stream->backlog = UINT64_MAX / 2;
    chores_run(&broker->loop.chores, &broker->loop.clock, 0);
    assert_null(broker->loop.chores.first);
    assert_false(checkpoints_run(broker->checkpoints));
    assert_int_equal(broker->stream->given, given);
    broker->stream->backlog = 0;
    assert_true(checkpoints_run(broker->checkpoints));
    end();
    check_files(&real);
    stop();
}

/* Sessions, replies and samples are those of the instant; a large value is not copied by the core thread. */
TEST(the_rest_is_of_the_instant_too, set_up, tear_down)
{
    start(false, 8, NULL);
    struct testpeer *writer[3], *reader = testpeer_new(&real.embed);
    for (uint32_t i = 0; i < 3; i++) {
        writer[i] = testpeer_opened(&real.embed, false);
        testpeer_inserted(writer[i], "once", 1000 * (i + 1), 10 + i, 1);
    }
    struct testpeer_answer *answer = testpeer_sampled(reader, "once", 4);
    uint64_t keys[4];
    for (uint32_t i = 0; i < 4; i++)
        keys[i] = answer->reply->sample->key[i];
    size_t large = 3000000;
    uint8_t *value = malloc(large);
    for (size_t i = 0; i < large; i++)
        value[i] = (uint8_t)(i * 7 / 3);
    assert_true(params_restore_slot(&broker->params, "s0", 5, broker->loop.now_ns, value, large));
    uint32_t ordinal[3] = {writer[0]->ordinal, writer[1]->ordinal, writer[2]->ordinal};
    assert_int_equal(checkpoint_start(broker->checkpoints, CHECKPOINT_ASKED, &number, NULL), RP_OK);
    assert_true(checkpoints_run(broker->checkpoints));
    params_restore_slot(&broker->params, "s0", 6, broker->loop.now_ns, "new", 3);
    session_close(session_find(&broker->sessions, writer[1]->session));
    table_reset(embed_table(&real.embed, "once"), NULL);
    end();
    testpeer_inserted(writer[0], "once", 1500, 3, 1);

    struct twin_files files;
    twin_load(&files, &real.embed, &folder, number);
    const struct sessions *sessions = &files.broker->sessions;
    assert_int_equal(sessions->by_id.count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct session *session = idmap_get(&files.loading.sessions, ordinal[i]);
        assert_int_equal(session->received, 1);
        assert_int_equal(session->n_layouts, writer[i]->n_layouts);
        assert_int_equal(session->flows[6].resolved, 10 + i);
    }
    assert_int_equal(files.loading.next_ordinal, broker->tables.ordinals.next);
    assert_true(files.broker->peers.kept_replies.list.count >= 3); /* of HELLO */
    assert_int_equal(files.broker->tables.list[6].in.size, 33 - 4);
    const struct params *params = &files.broker->params;
    assert_int_equal(params->n_slots, 1);
    assert_int_equal(params->slots[0].version, 5);
    assert_int_equal(zmq_msg_size(&params->slots[0].value->parts[0]), large);
    assert_memory_equal(zmq_msg_data(&params->slots[0].value->parts[0]), value, large);
    assert_int_equal(files.loading.selections.count, 1);
    const struct kept_image *kept = &TAILQ_FIRST(&files.loading.kept)->kept;
    assert_int_equal(kept->picks.n, 4);
    assert_true(kept->info.answered);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(kept->picks.key[i], keys[i]);
        assert_int_equal(kept->picks.chunks[i], 1);
        assert_non_null(kept->picks.refs[i]);
    }
    twin_unload(&files);
    free(value);
    stop();
}

/* After a checkpoint that failed, the next one that nobody asked for waits 30 s. */
TEST(a_failure_delays_the_next, set_up, tear_down)
{
    start(true, 1, "checkpoint: {every: 0s}\n");
    struct checkpoints *checkpoints = broker->checkpoints;
    embed_settle(&real.embed);
    broker->stream->journal_bytes = UINT64_C(1) << 40; /* one is due */
    assert_true(checkpoints_run(checkpoints));
    number = checkpoints->running->number;
    fail_one();
    for (uint32_t i = 0; i < 100; i++)
        assert_false(checkpoints_run(checkpoints));
    broker->loop.now_ns += 29 * NS_PER_S;
    assert_false(checkpoints_run(checkpoints));
    broker->loop.now_ns += 2 * NS_PER_S;
    assert_true(checkpoints_run(checkpoints));
    assert_true(checkpoint_is_running(checkpoints));
    stop();
}
