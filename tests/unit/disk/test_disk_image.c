#include "broker/disk/image.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/rng.h"
#include "tests/support/diskfile.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"
#include "tests/support/test.h"

/* Entries on their way into an image, without a file. */
static struct diskfile feed = {.number = 1, .offset = FILE_HEAD_BYTES, .used = sizeof(struct record_head)};

/* Applies what was put; gives the first status that is not RP_OK. */
static rp_status run(struct image *image, rp_error *err)
{
    rp_status status = RP_OK;
    record_seal(feed.record, feed.used, disk_at(1, feed.offset));
    struct entry_reader reader = entry_reader((struct record_view){feed.record, feed.used, disk_at(1, feed.offset)});
    for (struct entry_view entry; status == RP_OK && entry_next(&reader, &entry);) {
        status = entry_check(&entry, err);
        if (status == RP_OK)
            status = image_apply(image, &entry, err);
    }
    assert_false(reader.bad);
    feed.used = sizeof(struct record_head);
    return status;
}

static void sure(struct image *image)
{
    rp_error err = {0};
    if (run(image, &err) != RP_OK)
        fail_msg("%s", err.text);
}

static void refused(struct image *image, const char *words)
{
    rp_error err = {0};
    assert_int_equal(run(image, &err), RP_BAD_MESSAGE);
    if (!facts_within(err.text, words))
        fail_msg("'%s' instead of '%s'", err.text, words);
}

static void begin(struct image *image, int64_t wall_ns, int64_t clock_ns, uint64_t instance)
{
    diskfile_start(&feed, instance, wall_ns, clock_ns, 0, 0, 0);
    diskfile_table(&feed, 0, "a", 64, NULL);
    diskfile_table(&feed, 1, "b", 64, NULL);
    diskfile_layout(&feed, 0, 0, "a");
    diskfile_layout(&feed, 1, 1, "b");
    sure(image);
}

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

TEST(items)
{
    struct image image;
    image_init(&image);
    begin(&image, 5000, 100, 1);
    diskfile_session(&feed, 3, "actor");
    put_insert(0, 0, 77, 1.5, 110, 3, 1, 1);
    put_insert(0, 1, 78, 2.5, 120, 0, 0, 3);
    sure(&image);
    struct image_table *table = &image.tables[0];
    assert_string_equal(table->name, "a");
    assert_int_equal(table->size, 2);
    assert_int_equal(table->high, 2);
    assert_int_equal(table->limiter.inserts, 2);
    assert_int_equal(table->total_inserts, 2);
    assert_int_equal(table->items[1].n, 3);
    assert_int_equal(image_chunks(&table->items[1])[2], disk_at(4, 64 + 8 * 80));
    assert_int_equal(image_chunks(&table->items[0])[0], disk_at(3, 64 + 8 * 77));
    assert_string_equal(table->items[0].layout->wire->table, "a");
    assert_int_equal(image.sessions[0]->flows[0].resolved, 1);
    put_insert(0, 1, 79, 1, 130, 0, 0, 1);
    refused(&image, "taken");
    put_insert(0, 3000, 79, 1, 130, 0, 0, 1);
    refused(&image, "outside");
    put_slot(ENTRY_REMOVE, 0, 2);
    refused(&image, "no item");
    put_slot(ENTRY_REMOVE, 2, 0);
    refused(&image, "not named");
    put_pick(0, 1, 1, 5, 1, 0.5);
    refused(&image, "no item");
    assert_int_equal(table->size, 2);
    put_slot(ENTRY_REMOVE, 0, 1);
    struct entry_priority priority = {.slot = 0, .priority = 9};
    diskfile_put(&feed, ENTRY_PRIORITY, 0, &priority, sizeof priority, NULL, 0);
    sure(&image);
    assert_true(table->items[0].priority == 9 && table->updates == 1);
    assert_int_equal(table->limiter.deletes, 1);
    assert_int_equal(table->items[1].n, 0);
    diskfile_put(&feed, ENTRY_RESET, 0, NULL, 0, NULL, 0);
    sure(&image);
    assert_int_equal(table->size, 0);
    assert_int_equal(table->limiter.inserts + table->limiter.deletes, 0);
    assert_int_equal(table->total_inserts, 2);
    assert_int_equal(table->resets, 1);
    image_fini(&image);
}

/* Ids of layouts are used again: items keep what they were inserted with. */
TEST(layouts)
{
    struct image image;
    image_init(&image);
    begin(&image, 0, 0, 1);
    put_insert(0, 0, 1, 1, 1, 0, 0, 1);
    diskfile_layout(&feed, 0, 0, "other");
    put_insert(0, 1, 2, 1, 2, 0, 0, 1);
    diskfile_layout(&feed, 0, 0, "other");
    put_insert(0, 2, 3, 1, 3, 0, 0, 1);
    sure(&image);
    const struct image_item *items = image.tables[0].items;
    assert_string_equal(items[0].layout->wire->table, "a");
    assert_string_equal(items[1].layout->wire->table, "other");
    assert_ptr_equal(items[1].layout, items[2].layout);
    assert_ptr_not_equal(items[0].layout, items[1].layout);
    assert_int_equal(items[1].layout->refs, 3);
    diskfile_layout(&feed, 0, UINT64_C(1) << 40, "far");
    refused(&image, "impossible id");
    struct entry_named named = {7};
    diskfile_put(&feed, ENTRY_LAYOUT, 0, &named, sizeof named, "\xff\xff\xff", 3);
    refused(&image, "decoded");
    image_fini(&image);
}

TEST(picks)
{
    struct image image;
    image_init(&image);
    begin(&image, 0, 0, 1);
    put_insert(0, 0, 10, 1, 1, 0, 0, 2);
    put_insert(0, 1, 11, 2, 2, 0, 0, 1);
    put_pick(0, 5, 1, 0, 1, 0.25);
    put_pick(0, 5, 1, 1, 4, 0.75);
    put_slot(ENTRY_REMOVE, 0, 1);
    put_pick(0, 0, 0, 0, 2, 1);
    put_request(ENTRY_ANSWERED, 5, 1, NULL);
    put_pick(0, 5, 2, 0, 3, 1);
    sure(&image);
    assert_int_equal(image.tables[0].limiter.samples, 4);
    assert_int_equal(image.tables[0].total_samples, 4);
    assert_int_equal(image.tables[0].items[0].times_sampled, 3);
    image_finish(&image);
    assert_int_equal(image.selections.n, 2);
    const struct image_selection *first = image_selection(image.selections.oldest);
    assert_true(first->answered && first->n == 2 && first->want == 3 && first->flags == PICK_WHOLE);
    assert_int_equal(first->items[1].key, 11);
    assert_int_equal(first->items[1].times_sampled, 4);
    assert_int_equal(first->items[0].n, 2);
    assert_true(first->probability[1] == 0.75);
    assert_false(image_selection(image.selections.newest)->answered);
    put_request(ENTRY_FORGET, 5, 1, NULL);
    put_request(ENTRY_FORGET, 6, 6, NULL);
    sure(&image);
    image_finish(&image);
    assert_int_equal(image.selections.n, 1);
    assert_int_equal(image.selections.oldest->id, 2);
    assert_ptr_equal(image.selections.oldest, image.selections.newest);
    image_fini(&image);
}

TEST(replies)
{
    struct image image;
    image_init(&image);
    begin(&image, 0, 0, 1);
    for (uint64_t i = 0; i < 5 * IMAGE_REPLIES + 2; i++) {
        put_request(ENTRY_REPLY, 1, i, "frame");
        if (i % 3 == 0)
            put_request(ENTRY_FORGET, 1, i, NULL);
        sure(&image);
    }
    put_request(ENTRY_REPLY, 1, 5 * IMAGE_REPLIES + 1, "again");
    sure(&image);
    image_finish(&image);
    assert_int_equal(image.replies.n, IMAGE_REPLIES);
    uint32_t n = 0;
    for (struct image_request *at = image.replies.oldest; at; at = at->newer, n++) {
        assert_true(at->id % 3 != 0 && image_reply(at)->size == 5);
        assert_true(!at->older || at->id > at->older->id);
    }
    assert_int_equal(n, IMAGE_REPLIES);
    assert_memory_equal(image_reply(image.replies.newest)->frame, "again", 5);
    image_fini(&image);
}

static void put_progress(uint32_t session, uint32_t table, uint64_t resolved, uint64_t confirmed)
{
    struct entry_progress progress = {.session = session,
                                      .epoch = 4,
                                      .received = 5,
                                      .counted = 6,
                                      .received_bytes = 7,
                                      .allowed_bytes = 8,
                                      .confirmed_rejections = confirmed,
                                      .n_flows = 1};
    struct entry_flow flow = {.table = table, .resolved = resolved, .rejected = 1, .allowed = 99};
    diskfile_put(&feed, ENTRY_PROGRESS, 0, &progress, sizeof progress, &flow, sizeof flow);
}

static void put_rejection(uint32_t session, uint32_t table, uint64_t item, uint32_t more)
{
    struct entry_rejection body = {
        .session = session, .table = table, .item = item, .key = item, .status = 3, .more = more};
    diskfile_put(&feed, ENTRY_REJECTION, 0, &body, sizeof body, "no", 2);
}

TEST(sessions)
{
    struct image image;
    image_init(&image);
    begin(&image, 0, 0, 1);
    diskfile_session(&feed, 9, "nine");
    diskfile_session(&feed, 4, "four");
    diskfile_session(&feed, 6, "six");
    struct entry_named four = {4};
    diskfile_put(&feed, ENTRY_FORM, 0, &four, sizeof four, "\x0d\x02\x00\x00\x00\x12\x01\x61", 8);
    put_progress(4, 1, 10, 0);
    put_rejection(4, 1, 11, 2);
    put_rejection(4, UINT32_MAX, 5, 0);
    put_rejection(4, 1, 14, 0);
    put_progress(77, 1, 1, 1);
    sure(&image);
    assert_int_equal(image.next_ordinal, 10);
    assert_int_equal(image.n_sessions, 3);
    const uint32_t ordinals[] = {4, 6, 9};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(image.sessions[i]->ordinal, ordinals[i]);
    const struct image_session *session = image.sessions[0];
    assert_string_equal(session->hello->name, "four");
    assert_true(session->epoch == 4 && session->received == 5 && session->counted == 6);
    assert_true(session->received_bytes == 7 && session->allowed_bytes == 8);
    assert_string_equal(session->forms[2]->table, "a");
    assert_null(session->forms[0]);
    assert_int_equal(session->flows[1].resolved, 14);
    assert_int_equal(session->flows[1].rejected, 1 + 3 + 1);
    assert_int_equal(image.tables[1].rejected, 4);
    assert_int_equal(session->n_rejections, 3);
    assert_string_equal(session->rejections[0].text, "no");
    assert_int_equal(session->rejections[1].table, UINT32_MAX);
    put_progress(4, 1, 20, 2);
    sure(&image);
    assert_int_equal(session->n_rejections, 1);
    assert_int_equal(session->rejections[0].item, 14);
    put_progress(4, 5, 20, 2);
    refused(&image, "not named");
    struct entry_named six = {6};
    diskfile_put(&feed, ENTRY_SESSION_END, 0, &six, sizeof six, NULL, 0);
    put_insert(0, 0, 1, 1, 1, 6, 3, 1);
    sure(&image);
    assert_int_equal(image.n_sessions, 2);
    assert_int_equal(image.sessions[1]->ordinal, 9);
    image_fini(&image);
}

TEST(values)
{
    struct image image;
    image_init(&image);
    begin(&image, 0, 0, 1);
    diskfile_value(&feed, ENTRY_SLOT, "policy", 1, 5, "abc", 3);
    diskfile_value(&feed, ENTRY_SLOT, "policy2", 7, 5, NULL, 0);
    diskfile_value(&feed, ENTRY_SLOT, "policy", 2, 6, "defg", 4);
    diskfile_value(&feed, ENTRY_COUNTER, "steps", (uint64_t)-5, 0, NULL, 0);
    diskfile_value(&feed, ENTRY_COUNTER, "steps", (uint64_t)-4, 0, NULL, 0);
    struct entry_limiter limiter = {.kind = 2, .samples_per_insert = 4, .inserts = 8, .samples = 9, .deletes = 1};
    diskfile_put(&feed, ENTRY_LIMITER, 1, &limiter, sizeof limiter, NULL, 0);
    struct entry_named ordinal = {100};
    diskfile_put(&feed, ENTRY_ORDINAL, 0, &ordinal, sizeof ordinal, NULL, 0);
    sure(&image);
    assert_int_equal(image.n_slots, 2);
    assert_int_equal(image.slots[0].version, 2);
    assert_int_equal(image.slots[0].bytes, 4);
    assert_memory_equal(image.slots[0].value, "defg", 4);
    assert_int_equal(image.n_counters, 1);
    assert_int_equal(image.counters[0].value, -4);
    assert_memory_equal(&image.tables[1].limiter, &limiter, sizeof limiter);
    assert_int_equal(image.next_ordinal, 100);
    image_fini(&image);
}

/* Tables are known by their names: indexes are a file's own, and its counters are not news. */
TEST(files_number_tables_anew)
{
    struct image image;
    image_init(&image);
    begin(&image, 0, 0, 1);
    put_insert(0, 0, 1, 1, 1, 0, 0, 1);
    sure(&image);
    struct entry_table counters = {.limiter = {.min_size = 5, .inserts = 1000}, .total_inserts = 1000};
    diskfile_start(&feed, 1, 0, 10, 1, 0, 0);
    sure(&image);
    put_slot(ENTRY_REMOVE, 0, 0);
    refused(&image, "not named");
    diskfile_table(&feed, 0, "new", 8, &counters);
    diskfile_table(&feed, 5, "a", 1000, &counters);
    put_insert(5, 1, 2, 1, 2, 0, 0, 1);
    rp_error err = {0};
    assert_int_equal(run(&image, &err), RP_BAD_MESSAGE); /* a layout that was not described */
    diskfile_layout(&feed, 5, 5, "a");
    put_insert(5, 1100, 2, 1, 2, 0, 0, 1);
    sure(&image);
    assert_int_equal(image.n_tables, 3);
    assert_string_equal(image.tables[2].name, "new");
    assert_int_equal(image.tables[2].total_inserts, 1000);
    assert_int_equal(image.tables[0].total_inserts, 2);
    assert_int_equal(image.tables[0].limiter.inserts, 2);
    assert_true(image.tables[0].limiter.min_size == 5);
    assert_int_equal(image.tables[0].spec->max_size, 1000);
    assert_int_equal(image.tables[0].size, 2);
    image_fini(&image);
}

TEST(clocks)
{
    struct image image;
    image_init(&image);
    begin(&image, 1000000, 1000, 1);
    put_insert(0, 0, 1, 1, 1500, 0, 0, 1);
    put_insert(0, 1, 2, 1, 2500, 0, 0, 1);
    put_insert(0, 2, 3, 1, 2501, 0, 0, 1);
    diskfile_value(&feed, ENTRY_SLOT, "p", 1, 2400, "x", 1);
    sure(&image);
    /* Another file of the same process: its clock is the same, whatever the wall clock does. */
    begin(&image, 7000000, 2600, 1);
    put_insert(0, 3, 4, 1, 2700, 0, 0, 1);
    sure(&image);
    /* A new process, 400 later by the wall clock, with a clock of its own. */
    begin(&image, 7000500, 10, 2);
    put_insert(0, 4, 5, 1, 11, 0, 0, 1);
    sure(&image);
    image_finish(&image);
    const struct image_item *items = image.tables[0].items;
    assert_int_equal(image.clock_ns, 10);
    assert_int_equal(items[4].insert_ns, 11);
    assert_int_equal(items[3].insert_ns, 10 - 400);
    assert_int_equal(items[0].insert_ns, 10 - 500 - 1100);
    assert_int_equal(image.slots[0].put_ns, 10 - 500 - 200);
    /* One whose wall clock went back by far: nothing lies after its beginning, and the order stays. */
    begin(&image, 1000, 50000, 3);
    sure(&image);
    image_finish(&image);
    for (uint32_t i = 1; i < 5; i++)
        assert_true(items[i].insert_ns > items[i - 1].insert_ns);
    assert_int_equal(items[4].insert_ns, 50000);
    assert_int_equal(items[0].insert_ns, 50000 - 4);
    image_rebase(&image, 2000, 0);
    assert_int_equal(items[4].insert_ns, -1000);
    assert_int_equal(items[0].insert_ns, -1004);
    assert_int_equal(image.wall_ns, 2000);
    image_fini(&image);
}

/* Times at the ends of what is possible do no harm. */
TEST(far_clocks)
{
    const int64_t far = INT64_C(1) << 62;
    struct image image;
    image_init(&image);
    begin(&image, far, -far, 1);
    put_insert(0, 0, 1, 1, far, 0, 0, 1);
    put_insert(0, 1, 2, 1, -far, 0, 0, 1);
    sure(&image);
    begin(&image, -far, far, 2);
    begin(&image, far, -far, 3);
    image_finish(&image);
    image_rebase(&image, far, far);
    assert_true(image.tables[0].items[0].insert_ns >= image.tables[0].items[1].insert_ns);
    image_fini(&image);
}

static void put_selector(uint32_t table, uint32_t which, const char *bytes)
{
    struct entry_selector body = {which, (uint32_t)strlen(bytes)};
    diskfile_put(&feed, ENTRY_SELECTOR, table, &body, sizeof body, bytes, strlen(bytes));
}

TEST(selectors_are_exact_until_a_change)
{
    struct image image;
    image_init(&image);
    diskfile_start(&feed, 1, 0, 0, 0, 0, 0);
    diskfile_checkpoint(&feed, 0, 0);
    diskfile_table(&feed, 0, "a", 64, NULL);
    diskfile_table(&feed, 1, "b", 64, NULL);
    diskfile_layout(&feed, 0, 0, "a");
    put_selector(0, 0, "sampler");
    put_selector(0, 1, "remover");
    put_selector(1, 0, "other");
    diskfile_finish(&feed, 0);
    sure(&image);
    assert_true(image.exact);
    assert_memory_equal(image.tables[0].selector[1], "remover", 7);
    begin(&image, 0, 0, 1);
    assert_true(image.exact);
    put_insert(0, 0, 1, 1, 1, 0, 0, 1);
    sure(&image);
    assert_false(image.exact);
    assert_null(image.tables[0].selector[0]);
    assert_int_equal(image.tables[1].selector_bytes[0], 5);
    image_fini(&image);
}

/* ---- against a model */

#define SLOTS 80u
struct model_item {
    bool taken;
    uint64_t key;
    double priority;
    uint32_t times, n;
};
struct model {
    struct model_item items[2][SLOTS];
    uint64_t inserts[2], samples[2], deletes[2], total[2], updates[2], resets[2];
    uint64_t resolved[4][2]; /* by session */
    bool open[4];
    struct {
        uint64_t id;
        bool answered, there;
        uint32_t n;
        uint64_t keys[64];
    } samples_of[8];
};

static void model_insert(struct model *m, struct rng *rng, uint32_t t, uint32_t slot, uint64_t key)
{
    uint32_t session = (uint32_t)rng_below(rng, 5), n = 1 + (uint32_t)rng_below(rng, 3);
    uint64_t number = ++m->total[t];
    m->items[t][slot] = (struct model_item){true, key, (double)(key % 7), 0, n};
    m->inserts[t]++;
    if (session && m->open[session - 1])
        m->resolved[session - 1][t] = number;
    put_insert(t, slot, key, (double)(key % 7), (int64_t)key, session, number, n);
}

static void model_pick(struct model *m, struct rng *rng, uint32_t t, uint32_t slot)
{
    uint64_t id = rng_below(rng, 8);
    struct model_item *item = &m->items[t][slot];
    item->times++;
    m->samples[t]++;
    /* Requests 4 to 7 are of table 1; request 0 cannot be asked again. */
    id = id ? (id & 3) | (t ? 4 : 0) : 0;
    put_pick(t, id ? 1 : 0, id, slot, item->times, 0.5);
    if (!id)
        return;
    if (!m->samples_of[id].there || m->samples_of[id].answered || m->samples_of[id].n == 64) {
        if (m->samples_of[id].n == 64) {
            feed.used -= entry_padded(8 + sizeof(struct entry_pick) + sizeof(struct entry_picked));
            item->times--;
            m->samples[t]--;
            return;
        }
        m->samples_of[id].n = 0;
        m->samples_of[id].answered = false;
    }
    m->samples_of[id].there = true;
    m->samples_of[id].keys[m->samples_of[id].n++] = item->key;
}

static void model_step(struct model *m, struct rng *rng, uint64_t key)
{
    uint32_t t = (uint32_t)rng_below(rng, 2), slot = (uint32_t)rng_below(rng, SLOTS);
    struct model_item *item = &m->items[t][slot];
    uint64_t what = rng_below(rng, 100);
    if (what == 0) {
        memset(m->items[t], 0, sizeof m->items[t]);
        m->inserts[t] = m->samples[t] = m->deletes[t] = 0;
        m->resets[t]++;
        diskfile_put(&feed, ENTRY_RESET, t, NULL, 0, NULL, 0);
    } else if (what < 5) {
        uint32_t session = (uint32_t)rng_below(rng, 4);
        struct entry_named named = {session + 1};
        if (m->open[session])
            diskfile_put(&feed, ENTRY_SESSION_END, 0, &named, sizeof named, NULL, 0);
        else
            diskfile_session(&feed, session + 1, "s");
        m->open[session] = !m->open[session];
        memset(m->resolved[session], 0, sizeof m->resolved[session]);
    } else if (what < 12) {
        uint64_t id = 1 + rng_below(rng, 7);
        m->samples_of[id].answered = true;
        put_request(ENTRY_ANSWERED, 1, id, NULL);
    } else if (what < 18) {
        uint64_t id = 1 + rng_below(rng, 7);
        memset(&m->samples_of[id], 0, sizeof m->samples_of[id]);
        put_request(ENTRY_FORGET, 1, id, NULL);
    } else if (!item->taken) {
        model_insert(m, rng, t, slot, key);
    } else if (what < 40) {
        item->taken = false;
        m->deletes[t]++;
        put_slot(ENTRY_REMOVE, t, slot);
    } else if (what < 70) {
        item->priority = (double)what;
        m->updates[t]++;
        struct entry_priority body = {.slot = slot, .priority = (double)what};
        diskfile_put(&feed, ENTRY_PRIORITY, t, &body, sizeof body, NULL, 0);
    } else {
        model_pick(m, rng, t, slot);
    }
}

static void model_compare_table(const struct model *m, const struct image_table *table, uint32_t t)
{
    uint32_t size = 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        const struct model_item *want = &m->items[t][i];
        const struct image_item *got = &table->items[i];
        assert_int_equal(got->n, want->taken ? want->n : 0);
        size += want->taken;
        if (!want->taken)
            continue;
        assert_int_equal(got->key, want->key);
        assert_true(got->priority == want->priority);
        assert_int_equal(got->times_sampled, want->times);
        for (uint32_t k = 0; k < got->n; k++)
            assert_int_equal(image_chunks(got)[k], disk_at(1 + want->key % 5, 64 + 8 * (want->key % 1000 + k)));
    }
    assert_int_equal(table->size, size);
    assert_int_equal(table->limiter.inserts, m->inserts[t]);
    assert_int_equal(table->limiter.samples, m->samples[t]);
    assert_int_equal(table->limiter.deletes, m->deletes[t]);
    assert_int_equal(table->total_inserts, m->total[t]);
    assert_int_equal(table->updates, m->updates[t]);
    assert_int_equal(table->resets, m->resets[t]);
}

static void model_compare(const struct model *m, struct image *image)
{
    image_finish(image);
    for (uint32_t t = 0; t < 2; t++)
        model_compare_table(m, &image->tables[t], t);
    uint32_t at = 0, selections = 0;
    for (uint32_t i = 0; i < 4; i++)
        if (m->open[i]) {
            assert_int_equal(image->sessions[at]->ordinal, i + 1);
            for (uint32_t t = 0; t < image->sessions[at]->n_flows; t++)
                assert_int_equal(image->sessions[at]->flows[t].resolved, m->resolved[i][t]);
            at++;
        }
    assert_int_equal(image->n_sessions, at);
    for (uint32_t id = 1; id < 8; id++)
        selections += m->samples_of[id].there;
    assert_int_equal(image->selections.n, selections);
    for (struct image_request *request = image->selections.oldest; request; request = request->newer, selections--) {
        const struct image_selection *got = image_selection(request);
        assert_true(m->samples_of[request->id].there);
        assert_int_equal(got->answered, m->samples_of[request->id].answered);
        assert_int_equal(got->n, m->samples_of[request->id].n);
        for (uint32_t k = 0; k < got->n; k++)
            assert_int_equal(got->items[k].key, m->samples_of[request->id].keys[k]);
    }
    assert_int_equal(selections, 0);
}

TEST(against_a_model)
{
    struct rng rng;
    rng_seed(&rng, naive_seed("disk_image"));
    static struct model m;
    struct image image;
    image_init(&image);
    begin(&image, 0, 0, 1);
    uint64_t key = 1;
    for (uint32_t round = 0; round < 400; round++) {
        uint64_t steps = 1 + rng_below(&rng, 100);
        for (uint64_t i = 0; i < steps; i++)
            model_step(&m, &rng, key++);
        if (feed.used > sizeof(struct record_head))
            sure(&image);
        model_compare(&m, &image);
    }
    image_fini(&image);
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
