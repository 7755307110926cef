/* See shardbed.h. */
#include "tests/support/shardbed.h"

void shardbed_prepare(struct shardbed *self, uint32_t n)
{
    *self = (struct shardbed){.n = n};
    assert_true(n <= SHARDBED_MOST);
    strcpy(self->dir, "/tmp/replay-shards-XXXXXX");
    assert_non_null(mkdtemp(self->dir));
    for (uint32_t i = 0; i < n; i++)
        snprintf(self->services[i], sizeof self->services[i], "ipc://%s/s%u", self->dir, i);
}

void shardbed_run(struct shardbed *self, uint32_t shard, const char *tables, const char *more)
{
    char shards[SHARDBED_MOST * 64] = "";
    for (uint32_t i = 0; i < self->n; i++)
        strcat(strcat(shards, i ? ", " : ""), self->services[i]);
    broker_process_start(&self->shards[shard], tables,
                         textf("service: %s\ningest: ipc://%s/i%u\nevents: ipc://%s/e%u\nshards: [%s]\nshard: %u\n%s",
                               self->services[shard], self->dir, shard, self->dir, shard, shards, shard,
                               more ? more : ""));
}

void shardbed_start(struct shardbed *self, uint32_t n, const char *tables, const char *more)
{
    shardbed_prepare(self, n);
    for (uint32_t i = 0; i < n; i++)
        shardbed_run(self, i, tables, more);
}

void shardbed_stop(struct shardbed *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->shards[i].dir[0])
            broker_process_fini(&self->shards[i]);
    assert_int_equal(system(textf("rm -rf %s", self->dir)), 0);
}

uint32_t shardbed_missing(rp_client *client)
{
    rp_client_info info = {.struct_size = sizeof info};
    ok(rp_client_get_info(client, &info, &err));
    return info.shards - info.connected_shards;
}

rp_client *shardbed_connect(const struct shardbed *self, uint32_t shard, const rp_client_options *options)
{
    rp_client *client = must(rp_client_connect(self->services[shard], options, WAIT, &err));
    wait_until(shardbed_missing(client) == 0);
    return client;
}
