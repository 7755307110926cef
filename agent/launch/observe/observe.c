/* See observe.h. The client reconnects to a restarted broker by itself; observe_files.c reads the reports. */
#include "agent/launch/observe/observe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/launch/observe/observe_files.h"
#include "agent/run/variables.h"
#include "agent/run/worker.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "replay/admin.h"

#define CONNECT_MS 5000
#define BACKOFF_MOST_MS 500
#define MOST_NAMES 4096u

#define MOST_SHARDS 256u

/* What the table of a shard has counted. */
struct counted {
    uint64_t instance;         /* of the shard, when it last answered */
    uint64_t inserts, samples; /* at that time */
    uint64_t before[2];        /* inserts and samples of instances whose counts are lost */
};

struct observer {
    char *table;
    rp_client *client;
    struct observation last;
    rp_info *info; /* of the last look; NULL: the broker did not answer */
    rp_info *waits;
    struct observe_files files;
    struct clock clock;
    struct counted shards[MOST_SHARDS];
};

struct observer *observer_new(const struct observe_options *options, rp_error *err)
{
    struct observer *self = calloc(1, sizeof *self);
    if (!self || !(self->table = strdup(options->table))) {
        free(self);
        err_set(err, RP_NO_MEMORY, "no memory for an observer");
        return NULL;
    }
    self->clock = clock_system();
    self->last = (struct observation){.actor_idle = NAN, .learner_idle = NAN, .value = NAN, .actor_value = NAN};
    idle_shares_none(&self->last.idle_by);
    observe_files_init(&self->files, options->folder, options->every_ns);
    self->files.foreign_actors = options->foreign_actors;
    rp_client_options client = {.struct_size = sizeof client, .name = "launch", .backoff_max_ms = BACKOFF_MOST_MS};
    client.key_file = options->key_file;
    self->client =
        rp_client_connect(options->service, &client, options->connect_ms > 0 ? options->connect_ms : CONNECT_MS, err);
    if (!self->client)
        observer_destroy(&self);
    return self;
}

void observer_destroy(struct observer **self)
{
    if (!self || !*self)
        return;
    if ((*self)->client)
        rp_client_destroy(&(*self)->client);
    rp_info_free(&(*self)->info);
    rp_info_free(&(*self)->waits);
    observe_files_fini(&(*self)->files);
    free((*self)->table);
    free(*self);
    *self = NULL;
}

rp_client *observer_client(struct observer *self)
{
    return self->client;
}

const struct observe_value *observer_values(const struct observer *self, uint32_t *n)
{
    *n = self->files.n_values;
    return self->files.values;
}

/* ---- from the broker ---- */

static uint64_t counter(const rp_info *info, const char *name)
{
    int64_t value = rp_info_i64(rp_info_find(info, "counters", name), "value");
    return value > 0 ? (uint64_t)value : 0;
}

static void take_counts(struct counted *self, uint64_t instance, uint64_t inserts, uint64_t samples)
{
    if (instance != self->instance && (inserts < self->inserts || samples < self->samples)) {
        self->before[0] += self->inserts; /* it came back without a journal */
        self->before[1] += self->samples;
    }
    self->instance = instance;
    self->inserts = inserts;
    self->samples = samples;
}

/* The counts of a shard that does not answer, or has come back empty, stay as they were: a sum that fell would look like a new
 * start. */
static void add_missing(struct observer *self, const rp_info *info)
{
    for (uint32_t i = 0; i < rp_info_count(info, "shards.shard") && i < MOST_SHARDS; i++) {
        const rp_info *shard = rp_info_at(info, "shards.shard", i);
        const rp_info *table = rp_info_find(shard, "tables", self->table);
        struct counted *counted = &self->shards[i];
        if (table)
            take_counts(counted, rp_info_u64(shard, "server.instance"), rp_info_u64(table, "limiter.inserts"),
                        rp_info_u64(table, "limiter.samples"));
        bool missing = !table && rp_info_text(shard, "problem")[0];
        self->last.inserts += counted->before[0] + (missing ? counted->inserts : 0);
        self->last.samples += counted->before[1] + (missing ? counted->samples : 0);
    }
}

/* Counters live on shard 0, which also stands for the broker as a whole. */
static void take_first(struct observer *self, const rp_info *info)
{
    struct observation *out = &self->last;
    if (rp_info_text(info, "shards.shard.0.problem")[0])
        return;
    out->broker_instance = rp_info_u64(info, "server.instance");
    out->steps = counter(info, COUNTER_STEPS);
    out->taken = self->files.foreign_actors ? out->steps : counter(info, COUNTER_TAKEN);
    out->learner_steps = counter(info, COUNTER_LEARNER_STEPS);
}

static void take_info(struct observer *self, const rp_info *info)
{
    struct observation *out = &self->last;
    take_first(self, info);
    out->broker_bytes = rp_info_u64(info, "server.memory_bytes");
    out->broker_limit = rp_info_u64(info, "server.memory_limit");
    out->policy = rp_info_u64(rp_info_find(info, "slots", VARIABLES_SLOT), "version");
    const rp_info *table = rp_info_find(info, "tables", self->table), *limiter = rp_info_at(table, "limiter", 0);
    if (!table)
        return;
    bool ratio = strcmp(rp_info_text(limiter, "kind"), "sample_to_insert_ratio") == 0;
    out->inserts = rp_info_u64(limiter, "inserts");
    out->samples = rp_info_u64(limiter, "samples");
    out->min_size = rp_info_real(limiter, "min_size");
    out->cursor = rp_info_real(limiter, "cursor");
    out->spi = ratio ? rp_info_real(limiter, "samples_per_insert") : 0.0;
    out->cursor_low = rp_info_real(limiter, "min_diff");
    out->cursor_high = rp_info_real(limiter, "max_diff");
    out->size = rp_info_u64(table, "size");
    out->max_size = rp_info_u64(table, "max_size");
    add_missing(self, info);
}

struct names {
    const char **list;
    uint32_t n;
};

static void names_add(struct names *self, const char *name)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (strcmp(self->list[i], name) == 0)
            return;
    if (self->list && self->n < MOST_NAMES)
        self->list[self->n++] = name;
}

static bool same_text(const rp_info *a, const rp_info *b, const char *name)
{
    return strcmp(rp_info_text(a, name), rp_info_text(b, name)) == 0;
}

/* True if the same client waits for permits at another shard, too, earlier in the list. */
static bool waits_before(const rp_info *waits, uint32_t at)
{
    const rp_info *wait = rp_info_at(waits, "waits", at);
    for (uint32_t i = 0; i < at; i++) {
        const rp_info *other = rp_info_at(waits, "waits", i);
        if (strcmp(rp_info_text(wait, "kind"), "permit") == 0 && same_text(wait, other, "kind") &&
            same_text(wait, other, "table") && same_text(wait, other, "who"))
            return true;
    }
    return false;
}

/* names borrows from waits. */
static void take_waits(struct observer *self, const rp_info *waits, struct names *names)
{
    struct observation *out = &self->last;
    out->waiting_samplers = 0;
    out->inserts_wait[0] = out->samples_wait[0] = '\0';
    for (uint32_t i = 0; i < rp_info_count(waits, "waits"); i++) {
        const rp_info *wait = rp_info_at(waits, "waits", i);
        const char *kind = rp_info_text(wait, "kind"), *text = rp_info_text(wait, "text");
        if (strcmp(rp_info_text(wait, "table"), self->table) != 0)
            continue;
        if (strcmp(kind, "insert") == 0) {
            names_add(names, rp_info_text(wait, "who"));
            if (!out->inserts_wait[0])
                snprintf(out->inserts_wait, sizeof out->inserts_wait, "%s", text);
        } else if (strcmp(kind, "sample") == 0 || strcmp(kind, "permit") == 0) {
            out->waiting_samplers += !waits_before(waits, i);
            if (!out->samples_wait[0])
                snprintf(out->samples_wait, sizeof out->samples_wait, "%s", text);
        }
    }
    out->waiting_inserts = names->n;
}

static double unix_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void observer_rescan(struct observer *self)
{
    self->files.scanned_s = 0;
}

void observer_look(struct observer *self, int64_t timeout_ms, struct observation *out)
{
    struct names names = {calloc(MOST_NAMES, sizeof *names.list), 0};
    int64_t end_ns = clock_now(&self->clock) + timeout_ms * NS_PER_MS;
    rp_info_free(&self->info);
    rp_info_free(&self->waits);
    self->last.broker = rp_admin_info(self->client, NULL, 0, timeout_ms, &self->info, NULL) == RP_OK;
    self->last.at_ns = clock_now(&self->clock);
    if (self->last.broker) {
        take_info(self, self->info);
        int64_t left_ms = (end_ns - self->last.at_ns) / NS_PER_MS;
        if (rp_admin_why(self->client, left_ms > 1 ? left_ms : 1, &self->waits, NULL) == RP_OK)
            take_waits(self, self->waits, &names);
    }
    double now_s = unix_now();
    observe_files_read(&self->files, now_s);
    observe_files_sum(&self->files, names.list, names.n, now_s, &self->last);
    free(names.list);
    *out = self->last;
}

void observer_why(const struct observer *self, const struct why_run *run, struct why *out)
{
    why_explain(&(struct why_facts){.info = self->info, .waits = self->waits, .run = run}, out);
}
