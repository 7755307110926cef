/* Loans: what they hold, what they may not push out, and what a client gets that has lost its own. */

#include "broker/sample/kept_samples.h"
#include "tests/support/testpeer.h"

#define LIMIT (UINT64_C(64) << 20)
#define LARGE 200000u
#define TABLE "  - {name: t, max_size: 100000, sampler: {kind: uniform}, limiter: {kind: none}}\n"
#define QUEUE "  - {name: q, max_size: 1000, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: none}}\n"
#define WAITING "  - {name: w, max_size: 1000, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}\n"
#define MOST 100u

static struct embed embed;
static struct testpeer *writer, *peer, *other;
static const uint8_t *memory;

static int begin(void **state)
{
    (void)state;
    embed_start(&embed, TABLE QUEUE WAITING, "memory_limit: 64MiB\n");
    writer = testpeer_new(&embed);
    peer = testpeer_new(&embed);
    other = testpeer_new(&embed);
    memory = testpeer_map(peer);
    return 0;
}

static int end(void **state)
{
    (void)state;
    testpeer_unmap();
    embed_stop(&embed);
    return 0;
}

static struct store *store(void)
{
    return &embed.broker->store;
}

static struct kept_samples *kept(void)
{
    return &embed.broker->samples.kept;
}

static uint32_t items(void)
{
    return embed_table(&embed, "t")->in.size;
}

/* Pages that were taken from the system for data. */
static uint64_t pages(void)
{
    return slab_bytes(store()->slabs)->reserved + store_shared(store()).reserved + store()->outside;
}

/* Inserts n items with chunks of their own. All chunks of a test have the same size. */
static void fill(const char *table, uint64_t key, uint32_t n, uint32_t bytes)
{
    if (writer->n_columns == 0) {
        struct testpeer_column column = {"x", "uint8", 1, {bytes, 0}, bytes};
        testpeer_open_with(writer, false, &column, 1);
    }
    for (uint32_t i = 0; i < n; i++) {
        testpeer_insert_large(writer, table, key + i, bytes, bytes >= STORE_KEEP_BYTES);
        if (i % 16 == 15 || i + 1 == n)
            testpeer_heartbeat(writer, 0, false);
    }
    embed_settle(&embed);
    testpeer_forget(writer);
}

struct sampled {
    uint64_t id, key[MOST], place[MOST + 1], stamp[MOST + 1];
    size_t n, n_places; /* of chunks, and of the packed ones */
};

static struct sampled read_answer(struct testpeer *self, uint64_t id)
{
    const struct testpeer_answer *answer = testpeer_good(self, id);
    const Replay__SampleReply *reply = answer->reply->sample;
    struct sampled sampled = {.id = id, .n = reply->n_key, .n_places = reply->n_place};
    assert_true(sampled.n <= MOST);
    memcpy(sampled.key, reply->key, sampled.n * 8);
    for (size_t i = 0; i < sampled.n_places; i++) {
        sampled.place[i] = reply->place[i];
        sampled.stamp[i] = reply->stamp[i];
    }
    if (reply->n_packed_at) {
        sampled.place[sampled.n_places] = reply->packed_at[0];
        sampled.stamp[sampled.n_places++] = reply->packed_at[1];
    }
    testpeer_forget(self);
    return sampled;
}

static struct sampled sample(struct testpeer *self, const char *table, uint32_t n, int flags)
{
    return read_answer(self, testpeer_sample(self, table, n, 0, flags));
}

static struct sampled sample_again(struct testpeer *self, const char *table, uint32_t n, uint64_t id, bool shared)
{
    return read_answer(self, testpeer_sample_as(self, id, table, n, 0, shared ? SHARED : 0));
}

static bool is_valid(const struct sampled *loan)
{
    for (size_t i = 0; i < loan->n_places; i++)
        if (memcmp(memory + loan->place[i] - 64, &loan->stamp[i], 8) != 0)
            return false;
    return true;
}

/* Checks that a retry gave what was given before, as far as it is in the table, as bytes. */
static void check_again(const struct sampled *before, const struct sampled *again)
{
    size_t n = 0;
    for (size_t i = 0; i < before->n; i++)
        if (table_find(embed_table(&embed, "t"), before->key[i]) != KEYMAP_NONE)
            assert_int_equal(again->key[n++], before->key[i]);
    assert_int_equal(again->n, n);
    assert_int_equal(again->n_places, 0);
}

/* ---- memory ---- */

TEST(loan_memory_limit, begin, end)
{
    fill("t", 1, 10, LARGE);
    assert_true(sample(peer, "t", 10, SHARED).n_places > 0);
    testpeer_settled(peer, 0);
    fill("t", 1000, 400, LARGE);
    assert_in_range(store_shared(store()).used, LIMIT / 2, LIMIT);
    assert_true(store_memory(store()) <= LIMIT);
    assert_true(pages() <= LIMIT + LIMIT / 8);
    assert_in_range(items(), 200, 330);
    /* Other data gets the memory when this is gone. */
    testpeer_reset(peer, "t");
    assert_true(pages() <= LIMIT / 8);
}

/* Data comes to shared memory only as far as there is memory for it. */
TEST(loan_of_full_memory, begin, end)
{
    fill("t", 1, 8000, 9000);
    uint32_t before = items();
    assert_true(before < 8000);
    for (uint32_t i = 0; i < 40; i++) {
        sample(peer, "t", MOST, SHARED);
        testpeer_settled(peer, 0);
        assert_true(store_memory(store()) <= LIMIT);
    }
    assert_true(store_shared(store()).used > 0);
    fill("t", 100000, 1000, 9000);
    assert_true(store_memory(store()) <= LIMIT);
    assert_true(pages() <= LIMIT + LIMIT / 8);
    assert_in_range(items(), before / 10 * 8, before);
}

TEST(loan_of_nobody, begin, end)
{
    fill("t", 1, 10, LARGE);
    sample(peer, "t", 10, SHARED);
    testpeer_settled(peer, 0);
    const struct shm_bytes shared = store_shared(store());
    const struct slab_bytes *slabs = slab_bytes(store()->slabs);
    const Replay__MemoryInfo *info = testpeer_info(peer)->server->memory;
    assert_true(shared.reserved > shared.used);
    assert_int_equal(info->shared, shared.used);
    assert_int_equal(info->slabs_free, slabs->reserved - slabs->used + shared.reserved - shared.used);
    /* When the reader is gone, new data stays in the messages in which it comes. */
    assert_true(store()->sharing);
    embed_advance(&embed, 1000 * 3600);
    embed_advance(&embed, 2000);
    assert_false(store()->sharing);
    testpeer_close(writer);
    writer = testpeer_new(&embed);
    fill("t", 100, 10, LARGE);
    assert_int_equal(store_shared(store()).used, shared.used);
}

/* ---- loans that end ---- */

/* A client has a second; after that its data is the first to go, and no item. */
TEST(loan_ends, begin, end)
{
    fill("t", 1, 260, LARGE);
    sample(other, "t", 1, 0); /* an older sample, which is no loan */
    struct sampled loans[3];
    for (uint32_t i = 0; i < 3; i++)
        loans[i] = sample(peer, "t", 10, SHARED);
    assert_true(loans[0].n_places > 0);
    fill("t", 1000, 300, LARGE); /* none of before is left */
    for (uint32_t i = 0; i < 3; i++)
        assert_true(is_valid(&loans[i]));
    uint32_t before = items();
    embed_advance(&embed, 2000);
    fill("t", 2000, 60, LARGE);
    assert_null(TAILQ_FIRST(&kept()->loans));
    assert_int_equal(kept()->list.count, 4); /* what a retry needs stays */
    for (uint32_t i = 0; i < 3; i++)
        assert_false(is_valid(&loans[i]));
    assert_in_range(items(), before + 10, before + 30);
}

/* The retry of a sample whose loan has ended gets the same selection, and no places that nothing holds. */
TEST(loan_lost, begin, end)
{
    for (int shared = 0; shared < 2; shared++) {
        fill("t", 1 + (uint64_t)shared * 10000, 400, LARGE);
        struct sampled loan = sample(peer, "t", 10, SHARED);
        assert_true(loan.n_places > 0 && TAILQ_FIRST(&kept()->loans));
        embed_advance(&embed, 2000);
        while (TAILQ_FIRST(&kept()->loans))
            assert_true(kept_samples_relieve(&embed.broker->samples));
        fill("t", 1000 + (uint64_t)shared * 10000, 20, LARGE);
        uint64_t counted = embed_table(&embed, "t")->limiter.samples;
        for (int i = 0; i < 2; i++) {
            struct sampled again = sample_again(peer, "t", 10, loan.id, shared);
            assert_true(again.n > 0);
            check_again(&loan, &again);
        }
        assert_int_equal(embed_table(&embed, "t")->limiter.samples, counted);
        testpeer_settled(peer, 0);
    }
}

/* One that was not lost: the retry ends the loan, and is the last to need its data. */
TEST(loan_asked_again, begin, end)
{
    fill("t", 1, 20, LARGE);
    struct sampled loan = sample(peer, "t", 10, SHARED);
    assert_true(loan.n_places > 0 && TAILQ_FIRST(&kept()->loans));
    struct sampled again = sample_again(peer, "t", 10, loan.id, true);
    check_again(&loan, &again);
    assert_null(TAILQ_FIRST(&kept()->loans));
    again = sample_again(peer, "t", 10, loan.id, false);
    check_again(&loan, &again);
    assert_int_equal(kept()->list.count, 1);
    /* What a client has not asked for again is there until it says that it has read it, though the items are gone. */
    loan = sample(peer, "t", 10, SHARED);
    testpeer_reset(other, "t");
    embed_settle(&embed);
    assert_true(loan.n_places > 0 && is_valid(&loan));
    testpeer_settled(peer, 0);
    assert_false(is_valid(&loan));
}

/* While the chunks of a loan are released, little by little, no other ends. */
TEST(loan_released_in_slices, begin, end)
{
    fill("t", 1, 100, 5000);
    for (uint32_t i = 0; i < 3; i++) {
        testpeer_await(peer, testpeer_sample(peer, "t", 3000, 0, SHARED));
        testpeer_forget(peer);
    }
    assert_false(kept_samples_relieve(&embed.broker->samples));
    embed_advance(&embed, 2000);
    for (uint32_t i = 0; i < 3; i++) {
        embed_advance(&embed, 1);
        assert_true(kept_samples_relieve(&embed.broker->samples));
        assert_false(kept_samples_relieve(&embed.broker->samples));
    }
    embed_settle(&embed);
    assert_null(TAILQ_FIRST(&kept()->loans));
}

/* ---- the room of kept samples ---- */

/* Checks that what was taken from the queue is there for a retry. */
static void check_taken(const struct sampled *taken)
{
    assert_true(kept()->list.bytes <= kept()->budget);
    struct sampled again = sample_again(other, "q", (uint32_t)taken->n, taken->id, false);
    assert_int_equal(again.n, taken->n);
    assert_memory_equal(again.key, taken->key, taken->n * 8);
    testpeer_settled(other, 0);
}

/* Loans push out each other, and nothing that would be lost. */
TEST(loan_beside_a_queue, begin, end)
{
    fill("q", 1, 23, LARGE);
    fill("t", 100, 150, LARGE);
    struct sampled taken = sample(other, "q", 5, 0);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(sample(peer, "t", 10, SHARED).n_places > 0);
    assert_non_null(TAILQ_FIRST(&kept()->loans));
    check_taken(&taken);
    taken = sample(other, "q", 18, 0); /* nearly all the room */
    assert_int_equal(sample(peer, "t", 10, SHARED).n_places, 0);
    check_taken(&taken);
}

/* A loan that would not get the room of all others ends none of them. */
TEST(loan_without_room, begin, end)
{
    fill("q", 1, 16, LARGE);
    fill("t", 100, 60, LARGE);
    struct sampled taken = sample(other, "q", 16, 0), first = sample(peer, "t", 2, SHARED);
    assert_true(first.n_places > 0);
    assert_int_equal(sample(peer, "t", 40, SHARED).n_places, 0);
    assert_true(TAILQ_FIRST(&kept()->loans) && is_valid(&first));
    check_taken(&taken);
}

/* ---- memory that is lent for small chunks ---- */

/* It is there until the client has read it, asks again, or lets a second pass while memory is short. */
TEST(lent_memory, begin, end)
{
    fill("t", 1, 200, 400);
    fill("q", 1000, 100, 400);
    assert_int_equal(sample(peer, "t", 10, PACKED).n_places, 0); /* a short frame costs less */
    assert_int_equal(sample(peer, "t", MOST, SHARED).n_places, 0);
    testpeer_settled(peer, 0);
    assert_int_equal(store_shared(store()).used, 0);
    for (int how = 0; how < 6; how++) { /* each way without and with the header */
        struct sampled lent = sample(peer, "t", MOST, how < 3 ? PACKED : HEAD), again;
        assert_int_equal(lent.n_places, 1);
        assert_true(is_valid(&lent) && TAILQ_FIRST(&kept()->loans));
        assert_true(store_shared(store()).used > 8192);
        embed_advance(&embed, 2000);
        assert_true(how % 3 != 1 || kept_samples_relieve(&embed.broker->samples));
        if (how % 3 > 0) {
            again = sample_again(peer, "t", MOST, lent.id, true);
            check_again(&lent, &again);
        } else {
            testpeer_settled(peer, 0);
        }
        assert_false(is_valid(&lent));
        assert_null(TAILQ_FIRST(&kept()->loans));
        assert_int_equal(store_shared(store()).used, 0);
    }
    assert_int_equal(kept_samples_readers(kept()), 1);
    struct sampled taken = sample(other, "q", 50, PACKED);
    assert_int_equal(taken.n_places, 1);
    check_taken(&taken);
    assert_int_equal(store_shared(store()).used, 0);
    assert_int_equal(kept()->loan_bytes, 0);
}

/* Replies take the room of older ones that nobody reads, and of nothing that would be lost. */
TEST(lent_memory_is_bounded, begin, end)
{
    struct sampled lent[20];
    fill("q", 1, 100, 4000);
    fill("t", 1000, 200, 4000);
    struct sampled taken = sample(other, "q", MOST, 0);
    for (uint32_t i = 0; i < 20; i++) {
        lent[i] = sample(peer, "t", MOST, PACKED);
        assert_int_equal(lent[i].n_places, 1);
        assert_true(kept()->list.bytes <= kept()->budget);
    }
    assert_false(is_valid(&lent[0]));
    assert_true(is_valid(&lent[15]));
    struct sampled again = sample_again(peer, "t", MOST, lent[0].id, true);
    check_again(&lent[0], &again);
    check_taken(&taken);
    testpeer_settled(peer, 0);
    assert_int_equal(kept()->loan_bytes, 0);
    assert_int_equal(store_shared(store()).used, 0);
}

/* A sample that is too large for a loan travels, and can be asked for again. */
TEST(loan_too_large, begin, end)
{
    fill("t", 1, 200, LARGE);
    struct sampled first = sample(peer, "t", MOST, SHARED);
    assert_int_equal(first.n_places, 0);
    assert_int_equal(kept()->list.count, 1);
    struct sampled again = sample_again(peer, "t", MOST, first.id, true);
    check_again(&first, &again);
    assert_int_equal(embed_table(&embed, "t")->limiter.samples, MOST);
}

/* A queue waits for memory instead of evicting: loans that nobody reads do not hold it up. */
TEST(loans_give_way_to_a_queue, begin, end)
{
    fill("t", 1, 60, LARGE);
    for (uint32_t i = 0; i < 5; i++)
        sample(peer, "t", 12, SHARED);
    assert_non_null(TAILQ_FIRST(&kept()->loans));
    testpeer_reset(peer, "t");
    embed_settle(&embed);
    uint64_t id = testpeer_sample(other, "w", 280, -1, 0);
    for (uint32_t i = 0; i < 280; i++)
        testpeer_insert_large(writer, "w", 5000 + i, LARGE, true);
    embed_settle(&embed);
    for (int i = 0; i < 20; i++)
        embed_advance(&embed, 1000);
    embed_settle(&embed);
    assert_int_equal(testpeer_await(other, id)->reply->sample->n_key, 280);
    assert_null(TAILQ_FIRST(&kept()->loans));
}

/* Items that have returned from their lease may be somebody else's: a retry gets others, though their data are still lent. */
TEST(loan_of_a_lease_that_has_ended, begin, end)
{
    fill("q", 1, 4, LARGE);
    peer->lease_ms = other->lease_ms = 1000;
    struct sampled loan = sample(peer, "q", 2, SHARED);
    assert_true(loan.n_places > 0 && TAILQ_FIRST(&kept()->loans));
    embed_advance(&embed, 1000);
    assert_int_equal(sample(other, "q", 2, 0).key[0], loan.key[0]);
    struct sampled again = sample_again(peer, "q", 2, loan.id, true);
    assert_int_equal(again.n, 2);
    assert_int_equal(again.key[0], 3);
}
