/* See shardbed.h. */
#include "tests/support/shardbed.h"

void shardbed_prepare(struct shardbed *self, uint32_t n)
{
    *self = (struct shardbed){.n = n};
    assert_true(n <= SHARDBED_MOST);
    snprintf(self->dir, sizeof self->dir, "/tmp/replay-shards-XXXXXX");
    assert_non_null(mkdtemp(self->dir));
    for (uint32_t i = 0; i < n; i++)
        snprintf(self->services[i], sizeof self->services[i], "ipc://%s/s%u", self->dir, i);
}

void shardbed_run(struct shardbed *self, uint32_t shard, const char *tables, const char *more)
{
    char keys[sizeof self->shards[0].more];
    int at = snprintf(keys, sizeof keys, "service: %s\ningest: ipc://%s/i%u\nevents: ipc://%s/e%u\n",
                      self->services[shard], self->dir, shard, self->dir, shard);
    for (uint32_t i = 0; i < self->n; i++)
        at += snprintf(keys + at, sizeof keys - (size_t)at, "%s%s", i ? ", " : "shards: [", self->services[i]);
    at += snprintf(keys + at, sizeof keys - (size_t)at, "]\nshard: %u\n%s", shard, more ? more : "");
    assert_true((size_t)at < sizeof keys);
    broker_process_start(&self->shards[shard], tables, keys);
}

void shardbed_start(struct shardbed *self, uint32_t n, const char *tables, const char *more)
{
    shardbed_prepare(self, n);
    for (uint32_t i = 0; i < n; i++)
        shardbed_run(self, i, tables, more);
}

void shardbed_stop(struct shardbed *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        char path[128];
        if (self->shards[i].dir[0])
            broker_process_fini(&self->shards[i]);
        for (const char *kind = "sie"; *kind; kind++) {
            snprintf(path, sizeof path, "%s/%c%u", self->dir, *kind, i);
            unlink(path);
        }
    }
    rmdir(self->dir);
}

static int all_are_connected(void *client)
{
    rp_client_info info = {.struct_size = sizeof info};
    assert_int_equal(rp_client_get_info(client, &info, NULL), RP_OK);
    return info.connected_shards == info.shards;
}

rp_client *shardbed_connect(const struct shardbed *self, uint32_t shard, const rp_client_options *options)
{
    rp_client *client = must(rp_client_connect(self->services[shard], options, WAIT, &err));
    assert_true(process_await(all_are_connected, client));
    return client;
}
