/* Checkpoints: what is written in slices, while everything changes, is the state at one instant. */

#include <dirent.h>
#include <fcntl.h>

#include "broker/checkpoint/checkpoint.h"
#include "tests/support/naive.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define TABLES 7u
#define SIZE 300u
#define SLOTS_MOST (SIZE + SIZE / 4 + 16)

static const char tables[] =
    "  - {name: fifo, max_size: 300, sampler: {kind: fifo}, remover: {kind: lifo}, limiter: {kind: none}}\n"
    "  - {name: lifo, max_size: 300, sampler: {kind: lifo}, remover: {kind: min_heap}, limiter: {kind: none}}\n"
    "  - {name: uniform, max_size: 300, sampler: {kind: uniform}, remover: {kind: fifo}, limiter: {kind: none}}\n"
    "  - {name: min, max_size: 300, sampler: {kind: min_heap}, remover: {kind: uniform}, limiter: {kind: none}}\n"
    "  - {name: max, max_size: 300, sampler: {kind: max_heap}, remover: {kind: fifo}, limiter: {kind: none}}\n"
    "  - {name: weighted, max_size: 300, sampler: {kind: prioritized, exponent: 0.6},\n"
    "     remover: {kind: prioritized, exponent: -1}, limiter: {kind: none}}\n"
    "  - {name: once, max_size: 300, max_times_sampled: 1, sampler: {kind: uniform}, limiter: {kind: none}}\n";

static struct embed embed;
static struct broker *broker;
static struct twin_folder folder;
static struct rng rng;
static struct columns *columns;
static uint64_t next_key;

/* ---- a folder, a broker ---- */

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
    uint32_t n = 0;
    DIR *dir = opendir(folder.path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return n;
}

static void start(bool journal, const char *extra)
{
    char more[600];
    snprintf(more, sizeof more, "folder: %s\n%s%s", folder.path,
             journal ? "" : "journal: off\ncheckpoint: {every: 0s}\n", extra ? extra : "");
    embed_start(&embed, tables, more);
    broker = embed.broker;
    broker->checkpoints->slice = 64;
    Replay__Column column = REPLAY__COLUMN__INIT, *list = &column;
    column.name = (char[]){"x"};
    column.dtype = (char[]){"uint64"};
    columns = must(columns_new(&list, 1, &err));
}

static void stop(void)
{
    columns_release(columns);
    embed_stop(&embed);
}

/* embed_stop would empty the tables. */
static void stop_as_it_is(void)
{
    twin_kill(&embed);
    columns_release(columns);
}

/* ---- changes ---- */

static uint32_t below(uint32_t n)
{
    return (uint32_t)rng_below(&rng, n);
}

/* One of a few layouts of a table. */
static uint32_t layout_of(uint32_t table)
{
    Replay__Layout wire = REPLAY__LAYOUT__INIT;
    Replay__Field field = REPLAY__FIELD__INIT, *fields = &field;
    field.name = (char[]){"a"};
    field.name[0] = (char)('a' + below(5));
    wire.table = (char *)(uintptr_t)broker->tables.list[table].name;
    wire.n_fields = 1;
    wire.fields = &fields;
    struct layout *layout = must(layouts_intern(&broker->layouts, &wire, columns, table, (struct signature){0}, &err));
    return layout->id;
}

#define CHUNK_MOST 320u

/* Its data are the item's key and its place in the item. */
static struct chunk *chunk_of(uint64_t key, uint32_t place, uint32_t bytes)
{
    uint64_t data[CHUNK_MOST / 8] = {key, place};
    struct chunk *chunk = store_add(&broker->store, 1, data, bytes, bytes, NULL);
    assert_non_null(chunk);
    chunk->length = 1;
    chunk->session = 3;
    *chunk_block_sizes(chunk) = bytes;
    *chunk_block_codecs(chunk) = 0;
    return chunk;
}

static void insert(uint32_t t)
{
    struct arrival arrival = {.key = ++next_key, .priority = (double)below(20), .policy = below(1000)};
    uint32_t n = below(4) ? 1 : 1 + below(3);
    arrival.span = (struct span){.n = n, .length = n, .layout = layout_of(t)};
    if (n > 1) {
        arrival.span.many = malloc(n * sizeof(*arrival.span.many));
        broker->store.outside += span_list_bytes(n);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct chunk *chunk = chunk_of(arrival.key, i, 16 + 8 * below(38));
        if (n > 1)
            arrival.span.many[i] = chunk;
        else
            arrival.span.one = chunk;
    }
    ok(table_insert(&broker->tables.list[t], &arrival, &err));
}

static bool any_slot(const struct table *table, uint32_t *slot)
{
    if (table->in.size == 0)
        return false;
    do
        *slot = below(table->in.high);
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

static void change(void)
{
    uint32_t t = below(TABLES), slot;
    struct table *table = &broker->tables.list[t];
    char name[8];
    uint32_t what = below(100);
    embed.manual.now_ns += below(1000);
    broker->loop.now_ns = embed.manual.now_ns;
    if (what < 40)
        insert(t);
    else if (what < 55 && any_slot(table, &slot))
        table_remove(table, slot);
    else if (what < 75 && any_slot(table, &slot))
        table_update(table, 1, &slot, &(double){below(20)});
    else if (what < 92)
        sample(table, 1 + below(3));
    else if (what < 96) {
        snprintf(name, sizeof name, "c%u", below(9));
        params_restore_counter(&broker->params, name, below(1000));
    } else if (what < 98) {
        uint8_t value[600];
        snprintf(name, sizeof name, "s%u", below(5));
        memset(value, (int)below(256), sizeof value);
        params_restore_slot(&broker->params, name, below(1000) + 1, broker->loop.now_ns, value, below(sizeof value));
    } else if (what == 98 && below(4) == 0) {
        assert_int_equal(table_reset(table, NULL), RP_OK);
    } else if (what == 99 && below(3) == 0) {
        while (any_slot(table, &slot) && table->in.size > 5)
            table_remove(table, slot);
    }
}

/* ---- the state at one instant, in the simplest form ---- */

struct model_item {
    uint64_t key, policy, order[2];
    double priority;
    int64_t insert_ns;
    uint32_t n, times_sampled;
    char field;
};

struct model_table {
    struct model_item items[SLOTS_MOST];
    struct limiter limiter;
    uint64_t total_inserts, total_samples, updates, evicted, unique_samples;
    uint32_t size;
    uint8_t selector[2][64];
    uint32_t selector_bytes[2];
};

struct model {
    struct model_table tables[TABLES];
    int64_t counters[9];
    uint64_t versions[5];
    uint8_t values[5][600];
    size_t bytes[5];
    uint64_t number;
};

static void model_take(struct model *self)
{
    memset(self, 0, sizeof *self);
    self->number = broker->checkpoints->next;
    for (uint32_t t = 0; t < TABLES; t++) {
        const struct table *table = &broker->tables.list[t];
        struct model_table *to = &self->tables[t];
        to->limiter = table->limiter;
        to->total_inserts = table->stats.total_inserts;
        to->total_samples = table->stats.total_samples;
        to->updates = table->stats.updates;
        to->evicted = table->stats.evicted;
        to->unique_samples = table->stats.unique_samples;
        to->size = table->in.size;
        const rp_selector_ops *ops[2] = {table->sampler_ops, table->remover_ops};
        void *states[2] = {table->in.sampler, table->in.remover};
        for (uint32_t w = 0; w < 2; w++)
            to->selector_bytes[w] = ops[w]->save ? ops[w]->save(states[w], to->selector[w], 64) : 0;
        for (uint32_t slot = 0; slot < table->in.high; slot++) {
            const struct item *item = &table->in.items[slot];
            if (!item->span.n)
                continue;
            size_t size;
            const uint8_t *wire = layout_message(layouts_at(&broker->layouts, item->span.layout), &size);
            Replay__Layout *layout = replay__layout__unpack(NULL, size, wire);
            to->items[slot] = (struct model_item){.key = item->key,
                                                  .policy = item->policy,
                                                  .priority = item->priority,
                                                  .insert_ns = item->insert_ns,
                                                  .n = item->span.n,
                                                  .times_sampled = item->times_sampled,
                                                  .field = layout->fields[0]->name[0]};
            replay__layout__free_unpacked(layout, NULL);
            for (uint32_t w = 0; w < 2; w++)
                to->items[slot].order[w] = ops[w]->order ? ops[w]->order(states[w], slot) : 0;
        }
    }
    for (uint32_t i = 0; i < broker->params.n_counters; i++)
        self->counters[broker->params.counters[i].name[1] - '0'] = broker->params.counters[i].value;
    for (uint32_t i = 0; i < broker->params.n_slots; i++) {
        struct param_slot *slot = &broker->params.slots[i];
        uint32_t at = (uint32_t)(slot->name[1] - '0');
        self->versions[at] = slot->version;
        self->bytes[at] = zmq_msg_size(&slot->value->parts[0]);
        memcpy(self->values[at], zmq_msg_data(&slot->value->parts[0]), self->bytes[at]);
    }
}

/* ---- what the files say ---- */

static struct {
    uint64_t at, key;
    uint32_t place;
} wanted[TABLES * SLOTS_MOST * 4];
static uint32_t n_wanted, n_read;

static int by_place(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static rp_status check_chunk(void *ctx, uint64_t at, const struct chunk_view *chunk, rp_error *error)
{
    (void)ctx;
    (void)error;
    assert_true(n_read < n_wanted);
    assert_int_equal(wanted[n_read].at, at);
    uint64_t data[2];
    assert_true(chunk->head->bytes >= sizeof data);
    memcpy(data, chunk->data, sizeof data);
    assert_int_equal(data[0], wanted[n_read].key);
    assert_int_equal(data[1], wanted[n_read].place);
    assert_int_equal(chunk->head->session, 3);
    n_read++;
    return RP_OK;
}

static void check_chunks(const struct folder *in)
{
    uint64_t *places = malloc((n_wanted + 1) * sizeof *places);
    qsort(wanted, n_wanted, sizeof wanted[0], by_place);
    for (uint32_t i = 0; i < n_wanted; i++)
        places[i] = wanted[i].at;
    n_read = 0;
    ok(chunks_read(in, places, n_wanted, check_chunk, NULL, &err));
    assert_int_equal(n_read, n_wanted);
    free(places);
}

/* Returns the first letter of the name of a layout's first field. */
static char first_field(const struct layout *layout)
{
    size_t size;
    const uint8_t *packed = layout_message(layout, &size);
    Replay__Layout *wire = replay__layout__unpack(NULL, size, packed);
    char letter = wire->fields[0]->name[0];
    replay__layout__free_unpacked(wire, NULL);
    return letter;
}

static void check_table(const struct layouts *layouts, const struct loaded_table *got, const struct model_table *want)
{
    const struct table *table = got->table;
    assert_int_equal(table->in.size, want->size);
    assert_int_equal(got->limiter.inserts, want->limiter.inserts);
    assert_int_equal(got->limiter.samples, want->limiter.samples);
    assert_int_equal(got->limiter.deletes, want->limiter.deletes);
    assert_int_equal(table->stats.total_inserts, want->total_inserts);
    assert_int_equal(table->stats.total_samples, want->total_samples);
    assert_int_equal(table->stats.updates, want->updates);
    assert_int_equal(table->stats.evicted, want->evicted);
    assert_int_equal(table->stats.unique_samples, want->unique_samples);
    for (uint32_t w = 0; w < 2; w++) {
        assert_int_equal(got->selector_bytes[w], want->selector_bytes[w]);
        if (want->selector_bytes[w])
            assert_memory_equal(got->selector[w], want->selector[w], want->selector_bytes[w]);
    }
    for (uint32_t slot = 0; slot < SLOTS_MOST; slot++) {
        const struct model_item *item = &want->items[slot];
        const struct item *is = slot < table->in.high ? &table->in.items[slot] : NULL;
        if (!item->n) {
            assert_true(!is || is->span.n == 0);
            continue;
        }
        assert_non_null(is);
        assert_int_equal(is->key, item->key);
        assert_int_equal(is->policy, item->policy);
        assert_int_equal(is->insert_ns, item->insert_ns);
        assert_int_equal(is->times_sampled, item->times_sampled);
        assert_int_equal(is->span.n, item->n);
        assert_true(is->priority == item->priority);
        for (uint32_t w = 0; w < 2 && got->rank; w++)
            assert_int_equal(got->rank[slot][w], item->order[w]);
        assert_int_equal(first_field(layouts_at(layouts, is->span.layout)), item->field);
        for (uint32_t c = 0; c < is->span.n; c++) {
            wanted[n_wanted].at = offline_places(is)[c];
            wanted[n_wanted].key = is->key;
            wanted[n_wanted++].place = c;
        }
    }
}

static void check_params(const struct params *params, const struct model *model)
{
    for (uint32_t i = 0; i < params->n_counters; i++)
        assert_int_equal(params->counters[i].value, model->counters[params->counters[i].name[1] - '0']);
    uint32_t slots = 0;
    for (uint32_t i = 0; i < 5; i++)
        slots += model->versions[i] != 0;
    assert_int_equal(params->n_slots, slots);
    for (uint32_t i = 0; i < params->n_slots; i++) {
        uint32_t at = (uint32_t)(params->slots[i].name[1] - '0');
        assert_int_equal(params->slots[i].version, model->versions[at]);
        assert_int_equal(zmq_msg_size(&params->slots[i].value->parts[0]), model->bytes[at]);
        assert_memory_equal(zmq_msg_data(&params->slots[i].value->parts[0]), model->values[at], model->bytes[at]);
    }
}

/* The checkpoint as the files have it is the model. */
static void check_files(const struct model *model)
{
    struct twin_files files;
    twin_load(&files, &embed, &folder, model->number);
    assert_int_equal(files.loading.files.checkpoint, model->number);
    assert_int_equal(files.loading.n_tables, TABLES);
    n_wanted = 0;
    for (uint32_t t = 0; t < TABLES; t++)
        check_table(&files.broker->layouts, &files.loading.tables[t], &model->tables[t]);
    check_params(&files.broker->params, model);
    check_chunks(&files.folder);
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

static void begin(struct model *model)
{
    model_take(model);
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

static struct model model;

/* The one that runs fails, as the disk writer tells it. */
static void fail_one(void)
{
    checkpoint_finished(broker->checkpoints, model.number, false);
    for (uint32_t i = 0; i < 100 && checkpoint_is_running(broker->checkpoints); i++)
        one_slice();
    assert_false(checkpoint_is_running(broker->checkpoints));
}

static void make_one(void)
{
    begin(&model);
    end();
    assert_int_equal(broker->checkpoints->last.number, model.number);
}

/* ---- tests ---- */

TEST(slices_add_up_to_one_instant)
{
    rng_seed(&rng, naive_seed(__func__));
    for (uint32_t round = 0; round < 4; round++) {
        twin_folder_init(&folder);
        start(round % 2, NULL);
        uint32_t before = below(3000), bases = 0;
        for (uint32_t i = 0; i < before; i++)
            change();
        for (uint32_t n = 0; n < 12; n++) {
            begin(&model);
            bases += broker->checkpoints->running->base == 0;
            uint32_t often = 1 + below(40);
            while (checkpoint_is_running(broker->checkpoints)) {
                for (uint32_t i = below(often); i > 0; i--)
                    change();
                one_slice();
                if (broker->checkpoints->running && broker->checkpoints->running->ended)
                    end();
            }
            assert_int_equal(broker->checkpoints->last.number, model.number);
            check_files(&model);
            for (uint32_t i = below(200); i > 0; i--)
                change();
        }
        assert_true(bases >= 1 && bases < 12);
        stop();
        twin_folder_fini(&folder);
    }
}

TEST(what_a_reset_took_away_is_still_written, set_up, tear_down)
{
    rng_seed(&rng, 2);
    start(true, NULL);
    for (uint32_t i = 0; i < 250; i++)
        insert(5);
    begin(&model);
    one_slice();
    assert_int_equal(table_reset(&broker->tables.list[5], NULL), RP_OK);
    for (uint32_t i = 0; i < 100; i++)
        insert(5);
    assert_int_equal(table_reset(&broker->tables.list[5], NULL), RP_OK);
    for (uint32_t i = 0; i < 20; i++)
        insert(5);
    end();
    check_files(&model);
    make_one(); /* a change: the table is emptied, then filled */
    assert_int_equal(broker->checkpoints->last.based_on, 1);
    check_files(&model);
    stop();
}

TEST(a_change_is_small, set_up, tear_down)
{
    rng_seed(&rng, 3);
    start(false, NULL);
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t i = 0; i < SIZE; i++)
            insert(t);
    make_one();
    uint64_t first = broker->checkpoints->last.written_bytes;
    for (uint32_t i = 0; i < TABLES * SIZE / 100; i++)
        insert(i % TABLES);
    make_one();
    assert_int_equal(broker->checkpoints->last.based_on, 1);
    print_message("first %llu bytes, second %llu\n", (unsigned long long)first,
                  (unsigned long long)broker->checkpoints->last.written_bytes);
    assert_true(broker->checkpoints->last.written_bytes * 20 <= first);
    check_files(&model);
    stop();
}

TEST(old_ones_go_and_foreign_files_stay, set_up, tear_down)
{
    rng_seed(&rng, 4);
    start(true, "checkpoint: {keep: 2, every: 0s}\n");
    static const char *const foreign[] = {"checkpoint-00000900.replay", "segment-00000002.replay.bak", "checkpoint-1"};
    char path[128];
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder.path, foreign[i]);
        FILE *file = fopen(path, "w");
        fputs("mine", file);
        fclose(file);
    }
    broker->stream->segment_bytes = 20000;
    for (uint32_t n = 0; n < 12; n++) {
        for (uint32_t i = 0; i < 400; i++) {
            insert(below(TABLES));
            if (i % 20 == 0)
                one_slice();
        }
        make_one();
    }
    check_files(&model);
    uint32_t kept = broker->checkpoints->kept.n;
    assert_true(kept >= 2 && kept <= 2 + CHECKPOINT_LINKS);
    for (uint32_t i = 0; i < kept; i++) /* what is kept has all that it needs */
        for (uint32_t s = 0; s < broker->checkpoints->kept.list[i].n_segments; s++)
            assert_non_null(segments_find(&broker->stream->segments, broker->checkpoints->kept.list[i].segments[s]));
    uint32_t segments = broker->stream->segments.n;
    print_message("%u checkpoints, %u segments kept of %llu\n", kept, segments,
                  (unsigned long long)broker->stream->segment);
    stream_hand_over(broker->stream); /* the newest is a file, too */
    for (uint32_t ms = 0; ms < WAIT && files("segment-") != segments + 1; ms++)
        zmq_poll(NULL, 0, 1);
    assert_int_equal(files("segment-"), segments + 1);
    assert_true(segments < broker->stream->segment);
    stop();
    assert_int_equal(files("checkpoint-"), kept + 2);
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder.path, foreign[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
}

static void move_and_check(bool journal)
{
    broker->stream->segment_bytes = 8192;
    for (uint32_t i = 0; i < 300; i++) {
        insert(0);
        if (i % 20 == 0)
            make_one(); /* chunks come to many segments */
        if (i % 5 == 0)
            one_slice();
    }
    make_one();
    uint32_t many = broker->stream->segments.n;
    struct table *table = &broker->tables.list[0];
    struct chunk *shared = NULL;
    for (uint32_t slot = 0; slot < table->in.high; slot++)
        if (slot % 5 && table->in.items[slot].span.n)
            table_remove(table, slot);
    begin(&model);
    assert_int_equal(broker->checkpoints->running->base, 0);
    /* An item that comes after the instant names a chunk where it is before it is moved. */
    uint32_t first = 0;
    while (table->in.items[first].span.n != 1)
        first++;
    shared = table->in.items[first].span.one;
    uint64_t place = shared->at;
    struct arrival arrival = {.key = ++next_key, .priority = 1, .span = {.n = 1, .length = 1, .one = shared}};
    arrival.span.layout = layout_of(0);
    chunk_hold(shared);
    assert_int_equal(table_insert(table, &arrival, NULL), RP_OK);
    end();
    check_files(&model);
    assert_true(shared->at != place);
    table_remove(table, table_find(table, arrival.key));
    if (journal)
        assert_non_null(segments_find(&broker->stream->segments, disk_number(place)));
    make_one(); /* and it does not go on for ever */
    assert_true(broker->checkpoints->last.based_on != 0 || journal);
    check_files(&model);
    insert(0);
    broker->checkpoints->base = 0; /* a whole one, so that no base keeps files */
    make_one();
    uint32_t few = broker->stream->segments.n;
    print_message("%u segments, then %u\n", many, few);
    assert_true(many > 8 && few < many / 2);
    check_files(&model);
}

TEST(what_lives_in_dead_segments_is_moved)
{
    for (int journal = 0; journal < 2; journal++) {
        rng_seed(&rng, 5);
        twin_folder_init(&folder);
        start(journal, journal ? "checkpoint: {keep: 1, every: 0s}\n" : NULL);
        embed.config.checkpoint_keep = 1;
        move_and_check(journal);
        stop();
        twin_folder_fini(&folder);
    }
}
TEST(after_a_failure_the_next_is_whole, set_up, tear_down)
{
    rng_seed(&rng, 6);
    start(false, NULL);
    for (uint32_t i = 0; i < 2000; i++)
        change();
    make_one();
    for (uint32_t when = 0; when < 3; when++) {
        for (uint32_t i = 0; i < 50; i++)
            change();
        begin(&model);
        assert_true(broker->checkpoints->running->base != 0);
        for (uint32_t i = 0; i < when * 2; i++) {
            change();
            one_slice();
        }
        fail_one();
        make_one();
        assert_int_equal(broker->checkpoints->last.based_on, 0);
        check_files(&model);
    }
    stop();
}

/* An item over a chunk that a session holds. */
static void insert_over(struct chunk *chunk)
{
    struct arrival arrival = {.key = ++next_key, .priority = 1, .span = {.n = 1, .length = 1, .one = chunk}};
    arrival.span.layout = layout_of(0);
    chunk_hold(chunk);
    assert_int_equal(table_insert(&broker->tables.list[0], &arrival, NULL), RP_OK);
}

/* The same, and it is gone again at once. */
static void pass_over(struct chunk *chunk)
{
    insert_over(chunk);
    table_remove(&broker->tables.list[0], table_find(&broker->tables.list[0], next_key));
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
        held[n_held] = chunk_of(1, 0, CHUNK_MOST);
        pass_over(held[n_held]);
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
    rng_seed(&rng, 9);
    start(true, "checkpoint: {keep: 1, every: 0s}\n");
    uint64_t segment = hold_segment();
    pass_over(held[0]);
    let_go();
    assert_int_equal(segments_find(&broker->stream->segments, segment)->live, 0);
    begin(&model);
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
    rng_seed(&rng, 11);
    start(true, "checkpoint: {keep: 1, every: 0s}\n");
    uint64_t segment = hold_segment();
    insert(0);
    insert_over(held[0]);
    let_go();
    stop_as_it_is();
    char more[200];
    snprintf(more, sizeof more, "folder: %s\ncheckpoint: {keep: 1, every: 0s}\n", folder.path);
    embed_start(&embed, "  - {name: fifo, max_size: 1, sampler: {kind: fifo}, remover: {kind: lifo}}\n", more);
    broker = embed.broker;
    assert_int_equal(broker->tables.list[0].in.size, 1);
    assert_int_equal(segments_find(&broker->stream->segments, segment)->live, 0);
    broker->checkpoints->low = true;
    checkpoints_clean(broker->checkpoints);
    assert_non_null(segments_find(&broker->stream->segments, segment));
    embed_stop(&embed);
}

/* A base would keep the files that are to go. */
TEST(one_for_space_is_whole, set_up, tear_down)
{
    rng_seed(&rng, 10);
    start(true, "checkpoint: {keep: 1, every: 0s}\n");
    for (uint32_t i = 0; i < 200; i++)
        insert(2);
    make_one();
    for (uint32_t i = 0; i < 2; i++) {
        insert(2);
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
    rng_seed(&rng, 8);
    start(true, extra);
    make_one();
    for (uint32_t i = 0; i < 2000; i++)
        change();
    stream_hand_over(broker->stream);
    uint64_t bytes = broker->stream->journal_bytes;
    assert_true(bytes > 100000);
    begin(&model);
    assert_true(broker->stream->journal_bytes < bytes / 2);
    fail_one();
    assert_true(broker->stream->journal_bytes >= bytes);
    stop();
    start(true, extra);
    assert_true(broker->stream->journal_bytes >= bytes);
    stop();
}

TEST(one_that_waits_for_the_disk_sleeps, set_up, tear_down)
{
    rng_seed(&rng, 7);
    start(false, NULL);
    for (uint32_t i = 0; i < 300; i++)
        insert(0);
    begin(&model);
    uint64_t given = broker->stream->given;
    broker->stream->backlog = UINT64_MAX / 2;
    chores_run(&broker->loop.chores, &broker->loop.clock, 0);
    assert_null(broker->loop.chores.first);
    assert_false(checkpoints_run(broker->checkpoints));
    assert_int_equal(broker->stream->given, given);
    broker->stream->backlog = 0;
    assert_true(checkpoints_run(broker->checkpoints));
    end();
    check_files(&model);
    stop();
}

/* Sessions, replies and samples are those of the instant; a large value is not copied by the core thread. */
TEST(the_rest_is_of_the_instant_too, set_up, tear_down)
{
    rng_seed(&rng, 8);
    start(false, NULL);
    struct testpeer *writer[3], *reader = testpeer_new(&embed);
    for (uint32_t i = 0; i < 3; i++) {
        writer[i] = testpeer_opened(&embed, false);
        testpeer_insert(writer[i], "once", 1000 * (i + 1), 10 + i, 1);
        embed_settle(&embed);
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
    uint64_t number;
    assert_int_equal(checkpoint_start(broker->checkpoints, CHECKPOINT_ASKED, &number, NULL), RP_OK);
    assert_true(checkpoints_run(broker->checkpoints));
    params_restore_slot(&broker->params, "s0", 6, broker->loop.now_ns, "new", 3);
    session_close(session_find(&broker->sessions, writer[1]->session));
    table_reset(embed_table(&embed, "once"), NULL);
    end();
    testpeer_insert(writer[0], "once", 1500, 3, 1);
    embed_settle(&embed);

    struct twin_files files;
    twin_load(&files, &embed, &folder, number);
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
    const struct kept_image *kept = &files.loading.oldest->kept;
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
TEST(a_failure_delays_the_next)
{
    struct twin_folder own;
    struct embed lone;
    twin_folder_init(&own);
    embed_start(&lone, "  - {name: t, max_size: 10}\n", twin_config(&own, "checkpoint: {every: 0s}\n"));
    struct broker *core = lone.broker;
    struct checkpoints *checkpoints = core->checkpoints;
    embed_settle(&lone);
    core->stream->journal_bytes = UINT64_C(1) << 40; /* one is due */
    assert_true(checkpoints_run(checkpoints));
    checkpoint_finished(checkpoints, checkpoints->running->number, false);
    while (chores_run(&core->loop.chores, &core->loop.clock, NS_PER_S)) {
    }
    assert_false(checkpoint_is_running(checkpoints));
    for (uint32_t i = 0; i < 100; i++)
        assert_false(checkpoints_run(checkpoints));
    core->loop.now_ns += 29 * NS_PER_S;
    assert_false(checkpoints_run(checkpoints));
    core->loop.now_ns += 2 * NS_PER_S;
    assert_true(checkpoints_run(checkpoints));
    assert_true(checkpoint_is_running(checkpoints));
    embed_stop(&lone);
    twin_folder_fini(&own);
}
