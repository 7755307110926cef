/* The client library and a broker that remembers: what was read is settled, and what a broken connection took away is
 * asked for again. The broker runs in this thread, the client in its own. */

#include <pthread.h>
#include <stdatomic.h>

#include "broker/peer/peers.h"
#include "broker/sample/kept_samples.h"
#include "replay/client.h"
#include "replay/sampler.h"
#include "tests/support/testpeer.h"

#define ITEMS 600u
#define BATCH 3u
#define IN_FLIGHT 4u

static struct embed embed;

struct reader {
    char endpoint[256];
    atomic_uint taken; /* items */
    atomic_bool done;
    uint64_t keys[ITEMS];
    char failure[300];
};

static bool read_batch(struct reader *self, rp_sampler *sampler, rp_error *error)
{
    rp_batch *batch = NULL;
    if (rp_sampler_next(sampler, &batch, WAIT, error) != RP_OK)
        return false;
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_arrays arrays = {.struct_size = sizeof arrays};
    rp_batch_get_info(batch, &info);
    rp_batch_get_arrays(batch, &arrays);
    uint32_t taken = atomic_load(&self->taken);
    for (uint32_t i = 0; i < info.n && taken < ITEMS; i++)
        self->keys[taken++] = arrays.key[i];
    rp_batch_release(&batch);
    atomic_store(&self->taken, taken);
    return true;
}

/* Two samplers of one client: their requests are submitted by several threads. */
static void *read_all(void *arg)
{
    struct reader *self = arg;
    rp_client_options client_options = {
        .struct_size = sizeof client_options, .backoff_min_ms = 1, .backoff_max_ms = 10};
    rp_client *client = rp_client_connect(self->endpoint, &client_options, WAIT, &err);
    rp_sampler *samplers[2] = {NULL};
    bool ok = client != NULL;
    for (uint32_t i = 0; ok && i < 2; i++) {
        rp_sampler_options options = {.struct_size = sizeof options, .batch_size = BATCH, .in_flight = IN_FLIGHT};
        samplers[i] = rp_sampler_new(client, "t", &options, &err);
        ok = samplers[i] != NULL;
    }
    for (uint32_t turn = 0; ok && atomic_load(&self->taken) < ITEMS; turn++)
        ok = read_batch(self, samplers[turn % 2], &err);
    if (!ok)
        memcpy(self->failure, err.text,
               sizeof self->failure < sizeof err.text ? sizeof self->failure : sizeof err.text);
    for (uint32_t i = 0; i < 2; i++)
        rp_sampler_destroy(&samplers[i]);
    rp_client_destroy(&client);
    atomic_store(&self->done, true);
    return NULL;
}

static void count_one(void *ctx, const struct kept_image *kept)
{
    *(uint32_t *)ctx += kept->info.answered;
}

static uint32_t remembered(void)
{
    uint32_t n = 0;
    samples_each(&embed.broker->samples, count_one, &n);
    return n;
}

static void insert_more(struct testpeer *writer, uint64_t *inserted)
{
    testpeer_heartbeat(writer, 0, false);
    uint64_t may = testpeer_allowed(writer, 0) - writer->tables[0].items;
    uint32_t n = may < 6 ? (uint32_t)may : 6;
    if (*inserted + n > ITEMS)
        n = (uint32_t)(ITEMS - *inserted);
    if (n)
        testpeer_insert(writer, "t", *inserted + 1, n, 1);
    *inserted += n;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* How often the sockets are bound anew on the way, which ends all connections. */
static void read_a_queue(uint32_t breaks)
{
    static struct reader reader;
    memset(&reader, 0, sizeof reader);
    embed_start_real(&embed,
                     "  - {name: t, max_size: 1000, max_times_sampled: 1, sampler: {kind: fifo}, "
                     "limiter: {kind: queue}}\n",
                     "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n");
    struct testpeer *writer = testpeer_opened(&embed, false);
    writer->keep = true;
    testpeer_insert(writer, "t", 1, 6, 1);
    uint64_t inserted = 6;
    memcpy(reader.endpoint, embed.broker->peers.service_endpoint, sizeof reader.endpoint);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_all, &reader), 0);
    uint32_t broken = 0, most = 0;
    while (!atomic_load(&reader.done)) {
        broker_turn(embed.broker, 1);
        uint32_t now = remembered();
        most = now > most ? now : most;
        if (inserted < ITEMS && atomic_load(&reader.taken) + 30 > inserted)
            insert_more(writer, &inserted);
        if (broken < breaks && atomic_load(&reader.taken) > (broken + 1) * ITEMS / (breaks + 2)) {
            embed_rebind(&embed);
            testpeer_reconnect(writer);
            testpeer_resume(writer, 1, false);
            testpeer_resend(writer, writer->credit->received);
            broken++;
        }
    }
    pthread_join(thread, NULL);
    if (reader.failure[0])
        fail_msg("%s", reader.failure);
    assert_int_equal(broken, breaks);
    qsort(reader.keys, ITEMS, sizeof reader.keys[0], compare);
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_int_equal(reader.keys[i], i + 1);
    /* Those under way, and one more round until the next request says so. */
    assert_in_range(most, 1, 4 * IN_FLIGHT);
    embed_stop(&embed);
}

TEST(what_was_read_is_settled)
{
    read_a_queue(0);
}

TEST(nothing_is_lost_with_a_connection)
{
    read_a_queue(5);
}
