/* See observe.h. The client reconnects to a restarted broker by itself. Each look opens the reports again, so that a replaced file is
 * noticed; a file that has not grown is not read. */
#include "agent/launch/process/observe.h"

#include <dirent.h>
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/run/variables.h"
#include "agent/run/worker.h"
#include "proto/base/clock.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"
#include "replay/admin.h"

/* ---- the reports of processes ---- */

#define DEFAULT_EVERY_NS (2 * NS_PER_S)
/* The longest report in bytes. For actors and learners only the newest report counts, so no more than this is read of
 * a file that was not read before. */
#define MOST_LINE 65536
#define MOST_FILES 8192u
#define MOST_VALUES (1u << 20)
/* How often new files are looked for, at most: a measurement of some 100 ms has reports that come more often. */
#define SCAN_S 1.0
/* How long after its last report a process counts. */
#define PERIODS 3.0
#define GRACE_S 5.0
/* After this time an actor that waits in the broker is late with its report. */
#define LATE_PERIODS 1.5

void observe_files_init(struct observe_files *self, const char *folder, int64_t every_ns)
{
    *self = (struct observe_files){.every_s = 1e-9 * (double)(every_ns > 0 ? every_ns : DEFAULT_EVERY_NS)};
    if (folder && strlen(folder) < sizeof self->folder)
        snprintf(self->folder, sizeof self->folder, "%s", folder);
}

void observe_files_fini(struct observe_files *self)
{
    free(self->files);
    free(self->values);
    *self = (struct observe_files){0};
}

/* ---- finding files ---- */

/* Returns the length of "actor-3" in "actor-3.jsonl" and sets the role; 0: the file is not a report. */
static size_t parse_name(const char *name, enum role *role)
{
    for (*role = ROLE_LEARNER; *role < ROLES; ++*role) {
        size_t prefix = strlen(role_names[*role]);
        if (strncmp(name, role_names[*role], prefix) != 0 || name[prefix] != '-')
            continue;
        size_t digits = strspn(name + ++prefix, "0123456789");
        return digits > 0 && digits <= 9 && strcmp(name + prefix + digits, ".jsonl") == 0 ? prefix + digits : 0;
    }
    return 0;
}

static void add_file(struct observe_files *self, const char *name)
{
    enum role role;
    size_t length = parse_name(name, &role);
    if (length == 0)
        return;
    for (uint32_t i = 0; i < self->n; i++)
        if (strlen(self->files[i].name) == length && memcmp(self->files[i].name, name, length) == 0)
            return;
    if (self->n == MOST_FILES)
        return;
    self->files = need_room(self->files, self->n, &self->capacity, sizeof *self->files);
    struct observe_file *file = &self->files[self->n++];
    *file = (struct observe_file){.role = role, .idle = NAN, .value = NAN};
    memcpy(file->name, name, length);
}

static void scan(struct observe_files *self, double now_s)
{
    /* The search goes on even if the clock was set back. */
    if (self->scanned_s > 0 && now_s >= self->scanned_s && now_s - self->scanned_s < fmin(SCAN_S, self->every_s))
        return;
    self->scanned_s = now_s;
    DIR *folder = opendir(self->folder);
    if (!folder)
        return;
    for (const struct dirent *entry; (entry = readdir(folder));)
        add_file(self, entry->d_name);
    closedir(folder);
}

/* ---- lines ---- */

static uint64_t observe_count_of(struct json_object *line, const char *name)
{
    double number = json_map_number(line, name);
    return number > 0 && number < 1e18 ? (uint64_t)number : 0;
}

static void add_value(struct observe_files *self, struct json_object *line, double value)
{
    if (self->n_values == MOST_VALUES)
        return;
    self->values = need_room(self->values, self->n_values, &self->values_capacity, sizeof *self->values);
    self->values[self->n_values++] = (struct observe_value){.steps = observe_count_of(line, "environment_steps"),
                                                            .learner_steps = observe_count_of(line, "learner_steps"),
                                                            .value = value,
                                                            .seconds = json_map_number(line, "seconds")};
}

static void take_causes(struct observe_file *file, struct json_object *line)
{
    bool any = false;
    for (int i = 0; i < IDLE_CAUSES; i++) {
        double share = json_map_number(line, idle_keys[i]);
        any |= !isnan(share);
        file->by[i] = isnan(share) || isnan(file->idle) ? 0.0 : fmin(fmax(share, 0.0), 1.0);
    }
    /* A user's own program does not report what it waits for: all its waiting counts as waiting for the other side. */
    if (!any && !isnan(file->idle))
        file->by[file->role == ROLE_ACTOR ? IDLE_CREDIT : IDLE_SAMPLE] = file->idle;
}

static void take_report(struct observe_files *self, struct observe_file *file, struct json_object *line)
{
    double time_s = json_map_number(line, "time"), value = json_map_number(line, "return");
    if (isnan(time_s))
        return;
    file->time_s = time_s;
    if (!isnan(value))
        file->value = value;
    if (file->role == ROLE_EVALUATOR) {
        if (!isnan(value))
            add_value(self, line, value);
        return;
    }
    double idle = json_map_number(line, file->role == ROLE_ACTOR ? "blocked_share" : "wait_share");
    file->idle = isnan(idle) ? NAN : fmin(fmax(idle, 0.0), 1.0);
    take_causes(file, line);
}

/* ---- files ---- */

/* Reads the whole lines since the last look. Of a file that is new, or was replaced or cut, only the end counts, unless it has
 * evaluations. A line whose beginning is left out is no JSON. */
static void read_file(struct observe_files *self, struct observe_file *file, double now_s)
{
    char path[600], *text = NULL;
    struct stat status;
    size_t size = 0;
    int64_t before = file->offset;
    snprintf(path, sizeof path, "%s/%s.jsonl", self->folder, file->name);
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) /* a named pipe must not block the launcher */
        return;
    bool watched = file->inode == status.st_ino && status.st_size >= file->offset;
    /* A file of evaluations that was cut is read again from the start, and so are the others: the list would hold some
     * twice. */
    bool again = !watched && file->role == ROLE_EVALUATOR && file->inode != 0;
    self->n_values = again ? 0 : self->n_values;
    for (uint32_t i = 0; again && i < self->n; i++)
        if (self->files[i].role == ROLE_EVALUATOR)
            self->files[i].offset = 0;
    if (!watched)
        file->offset = 0;
    file->inode = status.st_ino;
    if (file->role != ROLE_EVALUATOR && status.st_size - file->offset > MOST_LINE)
        file->offset = status.st_size - MOST_LINE;
    FILE *in = status.st_size > file->offset ? fopen(path, "re") : NULL;
    if (!in)
        return;
    ssize_t n = fseek(in, file->offset, SEEK_SET) == 0 ? getline(&text, &size, in) : -1;
    for (; n > 0 && text[n - 1] == '\n'; n = getline(&text, &size, in)) {
        struct json_object *line = json_tokener_parse(text);
        if (json_object_is_type(line, json_type_object))
            take_report(self, file, line);
        json_object_put(line);
        file->offset += n;
    }
    free(text);
    fclose(in);
    if (watched && file->offset > before && file->time_s > 0)
        file->time_s = now_s;
}

void observe_files_read(struct observe_files *self, double now_s)
{
    if (self->first_s == 0)
        self->first_s = now_s;
    if (!self->folder[0])
        return;
    scan(self, now_s);
    for (uint32_t i = 0; i < self->n; i++)
        read_file(self, &self->files[i], now_s);
}

/* ---- what they say together ---- */

struct mean {
    double sum;
    uint32_t n;
};

static void mean_add(struct mean *self, double value)
{
    if (isnan(value))
        return;
    self->sum += value;
    self->n++;
}

static double mean_get(const struct mean *self)
{
    return self->n > 0 ? self->sum / (double)self->n : NAN;
}

static bool waits(const char *name, const char *const *waiting, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(waiting[i], name) == 0)
            return true;
    return false;
}

/* Actors that wait and have not reported yet. */
static uint32_t count_silent(const struct observe_files *self, const char *const *waiting, uint32_t n_waiting)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < n_waiting; k++) {
        bool known = strncmp(waiting[k], "actor-", 6) != 0;
        for (uint32_t i = 0; i < self->n && !known; i++)
            known = self->files[i].time_s > 0 && strcmp(self->files[i].name, waiting[k]) == 0;
        n += !known;
    }
    return n;
}

void observe_files_sum(const struct observe_files *self, const char *const *waiting, uint32_t n_waiting, double now_s,
                       struct observation *out)
{
    struct mean idle[ROLES] = {{0}}, value = {0};
    double by[ROLES][IDLE_CAUSES] = {{0}};
    /* In the first seconds no process can have reported. */
    if (self->folder[0] && !self->foreign_actors && now_s - self->first_s > LATE_PERIODS * self->every_s) {
        uint32_t silent = count_silent(self, waiting, n_waiting);
        idle[ROLE_ACTOR] = (struct mean){.sum = silent, .n = silent};
        by[ROLE_ACTOR][IDLE_CREDIT] = silent;
    }
    for (uint32_t i = 0; i < self->n; i++) {
        const struct observe_file *file = &self->files[i];
        double age_s = now_s - file->time_s;
        bool held = file->role == ROLE_ACTOR && file->time_s > 0 && age_s > LATE_PERIODS * self->every_s &&
                    waits(file->name, waiting, n_waiting);
        if (file->time_s <= 0 || (!held && age_s > PERIODS * self->every_s + GRACE_S))
            continue;
        mean_add(&idle[file->role], held ? 1.0 : file->idle);
        for (int k = 0; k < IDLE_CAUSES; k++)
            by[file->role][k] += held ? k == IDLE_CREDIT : isnan(file->idle) ? 0.0 : file->by[k];
        if (file->role == ROLE_ACTOR)
            mean_add(&value, file->value);
    }
    for (int k = 0; k < IDLE_CAUSES; k++) {
        out->idle_by.actor[k] = mean_get(&(struct mean){by[ROLE_ACTOR][k], idle[ROLE_ACTOR].n});
        out->idle_by.learner[k] = mean_get(&(struct mean){by[ROLE_LEARNER][k], idle[ROLE_LEARNER].n});
    }
    out->actor_idle = mean_get(&idle[ROLE_ACTOR]);
    out->learner_idle = mean_get(&idle[ROLE_LEARNER]);
    out->actor_value = mean_get(&value);
    out->values = self->n_values;
    const struct observe_value *last = self->n_values > 0 ? &self->values[self->n_values - 1] : NULL;
    out->value = last ? last->value : NAN;
    out->value_learner_steps = last ? last->learner_steps : 0;
    out->value_seconds = last ? last->seconds : NAN;
}

/* ---- the broker ---- */

#define MOST_NAMES 4096u

#define MOST_SHARDS 256u

/* What the table of a shard has counted. */
struct counted {
    uint64_t instance;         /* of the shard, when it last answered */
    uint64_t inserts, samples; /* at that time */
    uint64_t before[2];        /* inserts and samples of instances whose counts are lost */
};

struct observer {
    const char *table;
    rp_client *client;
    struct observation last;
    rp_info *info; /* of the last look; NULL: the broker did not answer */
    rp_info *waits;
    struct observe_files files;
    struct counted shards[MOST_SHARDS];
};

struct observer *observer_new(const struct command_context *context, const char *service, int64_t every_ns,
                              int64_t connect_ms, rp_error *err)
{
    struct observer *self = need_alloc(sizeof *self);
    char key[1100];
    self->table = context->config->adder.table;
    self->last = (struct observation){.actor_idle = NAN, .learner_idle = NAN, .value = NAN, .actor_value = NAN};
    idle_shares_none(&self->last.idle_by);
    observe_files_init(&self->files, context->folder, every_ns);
    self->files.foreign_actors = context->config->actors.command.count > 0;
    rp_client_options client = {.struct_size = sizeof client, .name = "launch"};
    client.key_file = run_keys_file(context->keys, "admin", key, sizeof key);
    self->client = rp_client_connect(service, &client, connect_ms, err);
    if (!self->client)
        observer_destroy(&self);
    return self;
}

void observer_destroy(struct observer **self)
{
    if (!self || !*self)
        return;
    rp_client_destroy(&(*self)->client);
    rp_info_free(&(*self)->info);
    rp_info_free(&(*self)->waits);
    observe_files_fini(&(*self)->files);
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
        self->last.paused &= !table || rp_info_u64(table, "limiter.paused") != 0;
        bool missing = !table && rp_info_text(shard, "problem")[0];
        self->last.inserts += counted->before[0] + (missing ? counted->inserts : 0);
        self->last.samples += counted->before[1] + (missing ? counted->samples : 0);
    }
}

static void take_info(struct observer *self, const rp_info *info)
{
    struct observation *out = &self->last;
    /* Counters live on shard 0, which also stands for the broker as a whole. */
    if (!rp_info_text(info, "shards.shard.0.problem")[0]) {
        out->broker_instance = rp_info_u64(info, "server.instance");
        out->steps = counter(info, COUNTER_STEPS);
        out->taken = self->files.foreign_actors ? out->steps : counter(info, COUNTER_TAKEN);
        out->learner_steps = counter(info, COUNTER_LEARNER_STEPS);
    }
    out->broker_bytes = rp_info_u64(info, "server.memory_bytes");
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
    out->paused = rp_info_u64(limiter, "paused") != 0;
    out->cursor_low = rp_info_real(limiter, "min_diff");
    out->cursor_high = rp_info_real(limiter, "max_diff");
    out->size = rp_info_u64(table, "size");
    out->max_size = rp_info_u64(table, "max_size");
    add_missing(self, info);
}

/* Gives the names of those whose inserts into the table wait, each once, and how many there are; they are borrowed. */
static uint32_t waiting_writers(const struct observer *self, const char *names[MOST_NAMES])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < rp_info_count(self->waits, "waits") && n < MOST_NAMES; i++) {
        const rp_info *wait = rp_info_at(self->waits, "waits", i);
        const char *who = rp_info_text(wait, "who");
        if (strcmp(rp_info_text(wait, "kind"), "insert") == 0 &&
            strcmp(rp_info_text(wait, "table"), self->table) == 0 && !waits(who, names, n))
            names[n++] = who;
    }
    return n;
}

void observer_rescan(struct observer *self)
{
    self->files.scanned_s = 0;
}

void observer_poll(struct observer *self, int64_t timeout_ms, struct observation *out)
{
    const char *names[MOST_NAMES];
    int64_t end_ns = clock_ns() + timeout_ms * NS_PER_MS;
    rp_info_free(&self->info);
    rp_info_free(&self->waits);
    self->last.broker = rp_admin_info(self->client, NULL, 0, timeout_ms, &self->info, NULL) == RP_OK;
    self->last.at_ns = clock_ns();
    if (self->last.broker) {
        take_info(self, self->info);
        int64_t left_ms = (end_ns - self->last.at_ns) / NS_PER_MS;
        rp_admin_why(self->client, left_ms > 1 ? left_ms : 1, &self->waits, NULL);
    }
    double now_s = clock_unix_s();
    observe_files_read(&self->files, now_s);
    observe_files_sum(&self->files, names, waiting_writers(self, names), now_s, &self->last);
    *out = self->last;
}

void observer_why(const struct observer *self, const struct why_run *run, struct why *out)
{
    why_explain(&(struct why_facts){.info = self->info, .waits = self->waits, .run = run}, out);
}
