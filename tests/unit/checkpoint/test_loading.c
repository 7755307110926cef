/* What entries of files do, and which are refused, without a broker. That files make the state of the broker which has
 * written them: test_journal.c; sessions: test_restore.c. */
#include "broker/checkpoint/loading.h"

#include "tests/support/diskfile.h"
#include "tests/support/facts.h"

/* Entries on their way, without a file. */
static struct diskfile feed = {.number = 1, .offset = FILE_HEAD_BYTES, .used = sizeof(struct record_head)};

static enum load_phase phase = LOAD_JOURNAL; /* of what is put */

/* Applies what was put; gives the first status that is not RP_OK. */
static rp_status run(struct offline *state, rp_error *error)
{
    rp_status status = RP_OK;
    record_seal(feed.record, feed.used, disk_at(1, feed.offset));
    struct entry_reader reader = entry_reader((struct record_view){feed.record, feed.used, disk_at(1, feed.offset)});
    for (struct entry_view entry; status == RP_OK && entry_next(&reader, &entry);) {
        status = entry_check(&entry, error);
        if (status == RP_OK)
            status = loading_apply(&state->loading, phase, &entry, error);
    }
    assert_false(reader.bad);
    feed.used = sizeof(struct record_head);
    return status;
}

static void sure(struct offline *state)
{
    ok(run(state, &err));
}

static void refused(struct offline *state, const char *words)
{
    err = (rp_error){0};
    assert_int_equal(run(state, &err), RP_BAD_MESSAGE);
    facts_said(err.text, words);
}

static void begin(struct offline *state, int64_t wall_ns, int64_t clock_ns, uint64_t instance)
{
    diskfile_start(&feed, instance, wall_ns, clock_ns, 0, 0, 0);
    diskfile_table(&feed, 0, "a", 64, NULL);
    diskfile_table(&feed, 1, "b", 64, NULL);
    diskfile_layout(&feed, 0, 0, "a");
    diskfile_layout(&feed, 1, 1, "b");
    sure(state);
}

FIXTURE(struct offline, offline_init, offline_fini)

static void put_insert(uint32_t table, uint32_t slot, uint64_t key, double priority, int64_t insert_ns,
                       uint32_t session, uint64_t number, uint32_t n_chunks)
{
    uint64_t chunks[8];
    for (uint32_t i = 0; i < n_chunks; i++)
        chunks[i] = disk_at(1 + key % 5, 64 + 8 * (key % 1000 + i));
    struct entry_insert insert = {.slot = slot,
                                  .n_chunks = n_chunks,
                                  .key = key,
                                  .priority = priority,
                                  .insert_ns = insert_ns,
                                  .policy = key * 3,
                                  .layout = table,
                                  .offset = 1,
                                  .length = 2,
                                  .session = session,
                                  .number = number};
    diskfile_insert(&feed, table, &insert, chunks);
}

static void put_slot(uint16_t type, uint32_t table, uint32_t slot)
{
    struct entry_slot body = {.slot = slot};
    diskfile_put(&feed, type, table, &body, sizeof body, NULL, 0);
}

static void put_request(uint16_t type, uint64_t client, uint64_t id, const char *frame)
{
    struct entry_request body = {client, id};
    diskfile_put(&feed, type, 0, &body, sizeof body, frame, frame ? strlen(frame) : 0);
}

static void put_pick(uint32_t table, uint64_t client, uint64_t id, uint32_t slot, uint32_t times, double probability)
{
    struct entry_pick pick = {.client = client, .id = id, .want = 3, .n = 1, .table_size = 9, .flags = PICK_WHOLE};
    struct entry_picked picked = {slot, times, probability};
    diskfile_put(&feed, ENTRY_PICK, table, &pick, sizeof pick, &picked, sizeof picked);
}

CASE(items)
{
    begin(f, 5000, 100, 1);
    diskfile_session(&feed, 3, "actor");
    put_insert(0, 0, 77, 1.5, 110, 3, 1, 1);
    put_insert(0, 1, 78, 2.5, 120, 0, 0, 3);
    sure(f);
    const struct loaded_table *loaded = &f->loading.tables[0];
    const struct table *table = loaded->table;
    assert_string_equal(table->name, "a");
    assert_int_equal(table->in.size, 2);
    assert_int_equal(table->in.high, 2);
    assert_int_equal(loaded->limiter.inserts, 2);
    assert_int_equal(table->stats.total_inserts, 2);
    assert_int_equal(table->in.items[1].span.n, 3);
    assert_int_equal(offline_places(&table->in.items[1])[2], disk_at(4, 64 + 8 * 80));
    assert_int_equal(offline_places(&table->in.items[0])[0], disk_at(3, 64 + 8 * 77));
    put_insert(0, 1, 79, 1, 130, 0, 0, 1);
    refused(f, "taken");
    put_insert(0, 3000, 79, 1, 130, 0, 0, 1);
    refused(f, "outside");
    put_slot(ENTRY_REMOVE, 0, 2);
    refused(f, "no item");
    put_slot(ENTRY_REMOVE, 2, 0);
    refused(f, "not named");
    put_pick(0, 1, 1, 5, 1, 0.5);
    refused(f, "no item");
    assert_int_equal(table->in.size, 2);
    put_slot(ENTRY_REMOVE, 0, 1);
    struct entry_priority priority = {.slot = 0, .priority = 9};
    diskfile_put(&feed, ENTRY_PRIORITY, 0, &priority, sizeof priority, NULL, 0);
    sure(f);
    assert_true(table->in.items[0].priority == 9 && table->stats.updates == 1);
    assert_int_equal(loaded->limiter.deletes, 1);
    assert_int_equal(table->in.items[1].span.n, 0);
    diskfile_put(&feed, ENTRY_RESET, 0, NULL, 0, NULL, 0);
    sure(f);
    assert_int_equal(table->in.size, 0);
    assert_int_equal(loaded->limiter.inserts + loaded->limiter.deletes, 0);
    assert_int_equal(table->stats.total_inserts, 2);
    assert_int_equal(table->resets, 1);
}

/* Ids of layouts are used again: items keep what they were inserted with. */
CASE(layouts)
{
    begin(f, 0, 0, 1);
    put_insert(0, 0, 1, 1, 1, 0, 0, 1);
    diskfile_layout(&feed, 0, 0, "other");
    put_insert(0, 1, 2, 1, 2, 0, 0, 1);
    diskfile_layout(&feed, 0, 0, "other");
    put_insert(0, 2, 3, 1, 3, 0, 0, 1);
    sure(f);
    const struct item *items = f->loading.tables[0].table->in.items;
    assert_int_equal(items[1].span.layout, items[2].span.layout);
    assert_int_not_equal(items[0].span.layout, items[1].span.layout);
    assert_int_equal(layouts_at(&f->layouts, items[0].span.layout)->refs, 1);
    assert_int_equal(layouts_at(&f->layouts, items[1].span.layout)->refs, 3);
    diskfile_layout(&feed, 0, UINT64_C(1) << 40, "far");
    refused(f, "impossible id");
    struct entry_named named = {7};
    diskfile_put(&feed, ENTRY_LAYOUT, 0, &named, sizeof named, "\xff\xff\xff", 3);
    refused(f, "decoded");
}

/* A request that was answered and picks again is a new sample; nobody knows of the one that is forgotten last. */
CASE(picks_after_an_answer)
{
    begin(f, 0, 0, 1);
    put_insert(0, 0, 10, 1, 1, 0, 0, 2);
    put_pick(0, 5, 1, 0, 1, 0.25);
    put_request(ENTRY_ANSWERED, 5, 1, NULL);
    put_pick(0, 5, 1, 0, 2, 0.5);
    put_request(ENTRY_FORGET, 6, 6, NULL);
    sure(f);
    const struct kept_image *kept = &TAILQ_LAST(&f->loading.kept, loaded_selections)->kept;
    assert_int_equal(f->loading.selections.count, 1);
    assert_true(!kept->info.answered && kept->picks.n == 1 && kept->picks.times_sampled[0] == 2);
}

CASE(sessions_and_replies)
{
    begin(f, 0, 0, 1);
    diskfile_session(&feed, 9, "nine");
    diskfile_session(&feed, 4, "four");
    diskfile_session(&feed, 9, "again");
    put_request(ENTRY_REPLY, 1, 7, "frame");
    sure(f);
    assert_int_equal(f->loading.next_ordinal, 10);
    assert_int_equal(f->loading.sessions.count, 2);
    assert_int_equal(kept_replies_find(&f->replies, 1, 7)->size, 5);
    struct entry_progress progress = {.session = 4, .n_flows = 1};
    struct entry_flow flow = {.table = 5};
    diskfile_put(&feed, ENTRY_PROGRESS, 0, &progress, sizeof progress, &flow, sizeof flow);
    refused(f, "not named");
    struct entry_named ended = {4};
    diskfile_put(&feed, ENTRY_SESSION_END, 0, &ended, sizeof ended, NULL, 0);
    put_insert(0, 0, 1, 1, 1, 4, 3, 1);
    sure(f);
    assert_int_equal(f->loading.sessions.count, 1);
    diskfile_session(&feed, 0, "nobody");
    refused(f, "ordinal");
}

/* Tables are known by their names: indexes are a file's own, and its counters are not news. */
CASE(files_number_tables_anew)
{
    begin(f, 0, 0, 1);
    put_insert(0, 0, 1, 1, 1, 0, 0, 1);
    sure(f);
    struct entry_table counters = {.limiter = {.min_size = 5, .inserts = 1000}};
    diskfile_start(&feed, 1, 0, 10, 1, 0, 0);
    sure(f);
    put_slot(ENTRY_REMOVE, 0, 0);
    refused(f, "not named");
    diskfile_table(&feed, 0, "new", 8, &counters);
    diskfile_table(&feed, 5, "a", 1000, &counters);
    put_insert(5, 1, 2, 1, 2, 0, 0, 1);
    assert_int_equal(run(f, &err), RP_BAD_MESSAGE); /* a layout that was not described */
    diskfile_layout(&feed, 5, 5, "a");
    put_insert(5, 1100, 2, 1, 2, 0, 0, 1);
    sure(f);
    const struct loaded_table *tables = f->loading.tables;
    assert_int_equal(f->loading.n_tables, 3);
    assert_string_equal(tables[2].table->name, "new");
    assert_int_equal(tables[2].table->stats.total_inserts, 1000);
    assert_int_equal(tables[0].table->stats.total_inserts, 2);
    assert_int_equal(tables[0].limiter.inserts, 2);
    assert_true(tables[0].limiter.min_size == 5);
    assert_int_equal(tables[0].table->in.size, 2);
}

CASE(clocks)
{
    begin(f, 1000000, 1000, 1);
    put_insert(0, 0, 1, 1, 1500, 0, 0, 1);
    put_insert(0, 1, 2, 1, 2500, 0, 0, 1);
    put_insert(0, 2, 3, 1, 2501, 0, 0, 1);
    diskfile_value(&feed, ENTRY_SLOT, "p", 1, 2400, "x", 1);
    sure(f);
    /* Another file of the same process: its clock is the same, whatever the wall clock does. */
    begin(f, 7000000, 2600, 1);
    put_insert(0, 3, 4, 1, 2700, 0, 0, 1);
    sure(f);
    /* A new process with a clock of its own. */
    begin(f, 7000500, 10, 2);
    put_insert(0, 4, 5, 1, 11, 0, 0, 1);
    sure(f);
    /* All times are in wall time. */
    const struct item *items = f->loading.tables[0].table->in.items;
    const int64_t zero = 1000000 - 1000, next = 7000500 - 10;
    assert_int_equal(items[0].insert_ns, zero + 1500);
    assert_int_equal(items[3].insert_ns, zero + 2700);
    assert_int_equal(items[4].insert_ns, next + 11);
    assert_int_equal(f->params.slots[0].put_ns, zero + 2400);
    /* A process whose wall clock went back by far: nothing lies after its beginning, and the order stays. */
    begin(f, 1000, 50000, 3);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(items[i].insert_ns, 1000 - 4 + i);
    assert_int_equal(f->params.slots[0].put_ns, 1000);
    put_insert(0, 5, 6, 1, 50001, 0, 0, 1);
    sure(f);
    loading_end_process(&f->loading, 500);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(items[i].insert_ns, 500 - 5 + i);
}

/* Times at the ends of what is possible do no harm. */
CASE(far_clocks)
{
    const int64_t far = INT64_C(1) << 62;
    begin(f, far, -far, 1);
    put_insert(0, 0, 1, 1, far, 0, 0, 1);
    put_insert(0, 1, 2, 1, -far, 0, 0, 1);
    sure(f);
    begin(f, -far, far, 2);
    begin(f, far, -far, 3);
    const struct item *items = f->loading.tables[0].table->in.items;
    loading_end_process(&f->loading, far);
    assert_true(items[0].insert_ns >= items[1].insert_ns);
}

static void put_selector(uint32_t table, uint32_t which, const char *bytes)
{
    struct entry_selector body = {which, (uint32_t)strlen(bytes)};
    diskfile_put(&feed, ENTRY_SELECTOR, table, &body, sizeof body, bytes, strlen(bytes));
}

CASE(selectors_are_exact_until_a_change)
{
    phase = LOAD_CHECKPOINT;
    diskfile_start(&feed, 1, 0, 0, 0, 0, 0);
    diskfile_checkpoint(&feed, 0, 0);
    diskfile_table(&feed, 0, "a", 64, NULL);
    diskfile_table(&feed, 1, "b", 64, NULL);
    diskfile_layout(&feed, 0, 0, "a");
    put_selector(0, 0, "sampler");
    put_selector(0, 1, "remover");
    put_selector(1, 0, "other");
    diskfile_finish(&feed, 0);
    sure(f);
    phase = LOAD_JOURNAL;
    assert_false(f->loading.changed);
    assert_memory_equal(f->loading.tables[0].selector[1], "remover", 7);
    begin(f, 0, 0, 1);
    assert_false(f->loading.changed);
    put_insert(0, 0, 1, 1, 1, 0, 0, 1);
    sure(f);
    assert_true(f->loading.changed);
}

static int teardown(void **state)
{
    (void)state;
    free(feed.record);
    return 0;
}

int main(void)
{
    return test_run(NULL, teardown);
}
