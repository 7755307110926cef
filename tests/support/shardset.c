/* See shardset.h. */
#include "tests/support/shardset.h"
#include "tests/support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void shardset_start(struct shardset *self, uint32_t n, const char *tables, const char *more)
{
    char list[400] = "", text[sizeof self->brokers[0].more];
    *self = (struct shardset){.n = n, .dir = "/tmp/rp-shards-XXXXXX"};
    assert_true(n <= SHARDSET_MOST);
    assert_non_null(mkdtemp(self->dir));
    for (uint32_t i = 0; i < n; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%sipc://%s/s%u", i ? ", " : "", self->dir, i);
    for (uint32_t i = 0; i < n; i++) {
        int used =
            snprintf(text, sizeof text,
                     "service: ipc://%s/s%u\ningest: ipc://%s/i%u\nevents: ipc://%s/e%u\nshards: [%s]\nshard: %u\n%s",
                     self->dir, i, self->dir, i, self->dir, i, list, i, more ? more : "");
        assert_true(used > 0 && (size_t)used < sizeof text);
        broker_process_start(&self->brokers[i], tables, text);
    }
}

void shardset_fini(struct shardset *self)
{
    char command[80];
    for (uint32_t i = 0; i < self->n; i++)
        broker_process_fini(&self->brokers[i]);
    snprintf(command, sizeof command, "rm -rf %s", self->dir);
    assert_int_equal(system(command), 0);
}

const char *shardset_endpoint(const struct shardset *self, uint32_t shard)
{
    return self->brokers[shard].service;
}

void shardset_kill(struct shardset *self, uint32_t shard)
{
    broker_process_stop(&self->brokers[shard], SIGKILL);
}

void shardset_again(struct shardset *self, uint32_t shard)
{
    broker_process_again(&self->brokers[shard], NULL);
}
