/* How fast a writer is alone: 400-byte items, 50 to a message, against a peer that only counts. Prints; the figures that
 * are promised anywhere come from replay-bench. RP_RATE_ITEMS makes it run longer. */
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "proto/base/clock.h"
#include "proto/base/rng.h"
#include "replay/client.h"
#include "replay/writer.h"
#include "tests/support/fakepeer.h"
#include "tests/support/test.h"

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

TEST(items_per_second)
{
    const char *given = getenv("RP_RATE_ITEMS");
    uint64_t n = given ? strtoull(given, NULL, 10) : 100000;
    rp_column column = {.name = "x", .dtype = RP_DTYPE_FLOAT32, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {100}};
    struct fakepeer *peer = malloc(sizeof *peer);
    struct clock clock = clock_system();
    rp_error err = {0};
    fakepeer_start(peer);
    fakepeer_set(peer, &peer->discard, true);
    rp_client *client = rp_client_connect(peer->endpoint, NULL, 5000, &err);
    assert_non_null(client);
    rp_writer *writer = rp_writer_new(client, &column, 1, NULL, 5000, &err);
    assert_non_null(writer);
    struct rng rng;
    rng_seed(&rng, 1);
    uint64_t row[50];
    for (int i = 0; i < 50; i++)
        row[i] = rng_next(&rng);
    const void *values[] = {row};
    int64_t start = clock_now(&clock);
    double cpu = cpu_seconds();
    for (uint64_t i = 0; i < n; i++) {
        row[0] = i;
        assert_int_equal(rp_writer_append(writer, values, -1, &err), RP_OK);
        assert_int_equal(rp_writer_item_last(writer, "a", 1, 1, -1, NULL, &err), RP_OK);
    }
    assert_int_equal(rp_writer_flush(writer, 0, 20000, &err), RP_OK);
    double seconds = (double)(clock_now(&clock) - start) / 1e9;
    rp_writer_info info = {.struct_size = sizeof info};
    rp_writer_get_info(writer, &info, NULL);
    printf("%.2f M items/s, %.1f items per message, %.2f s of CPU (both sides) for %.2f s\n", (double)n / seconds / 1e6,
           (double)n / (double)info.messages, cpu_seconds() - cpu, seconds);
    assert_int_equal(fakepeer_read(peer, &peer->items), n);
    rp_writer_destroy(&writer, 5000, NULL);
    rp_client_destroy(&client);
    fakepeer_stop(peer);
    free(peer);
}
