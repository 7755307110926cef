/* See observe_files.h. Each look opens the files again, so that a replaced file is noticed; a file that has not grown
 * is not read. */
#include "agent/launch/observe/observe_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/json_map.h"

#define DEFAULT_EVERY_NS (2 * NS_PER_S)
/* The longest report in bytes. For actors and learners only the newest report counts, so no more than this is read of
 * a file that was not read before. */
#define MOST_LINE 65536
#define MOST_FILES 8192u
#define MOST_VALUES (1u << 20)
/* Bytes read from one file in one look; the next look reads on. */
#define MOST_READ (64 * MOST_LINE)
#define SCAN_S 1.0
/* How long after its last report a process counts. */
#define PERIODS 3.0
#define GRACE_S 5.0
/* After this time an actor that waits in the broker is late with its report. */
#define LATE_PERIODS 1.5

static const char *const prefixes[OBSERVE_KINDS] = {
    [OBSERVE_ACTOR] = "actor-", [OBSERVE_LEARNER] = "learner-", [OBSERVE_EVALUATOR] = "evaluator-"};

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

/* Makes room for one more element. */
static bool grow(void **data, uint32_t n, uint32_t *capacity, size_t size, uint32_t most)
{
    if (n < *capacity)
        return true;
    if (n >= most)
        return false;
    uint32_t wanted = *capacity ? *capacity * 2 : 16;
    void *more = realloc(*data, wanted * size);
    if (!more)
        return false;
    *data = more;
    *capacity = wanted;
    return true;
}

/* ---- finding files ---- */

/* Returns the length of "actor-3" in "actor-3.jsonl" and sets the kind; 0: the file is not a report. */
static size_t parse_name(const char *name, enum observe_kind *kind)
{
    for (int k = 0; k < OBSERVE_KINDS; k++) {
        size_t prefix = strlen(prefixes[k]);
        if (strncmp(name, prefixes[k], prefix) != 0)
            continue;
        size_t digits = strspn(name + prefix, "0123456789");
        if (digits == 0 || digits > 9 || strcmp(name + prefix + digits, ".jsonl") != 0)
            return 0;
        *kind = (enum observe_kind)k;
        return prefix + digits;
    }
    return 0;
}

static void add_file(struct observe_files *self, const char *name)
{
    enum observe_kind kind = OBSERVE_ACTOR;
    size_t length = parse_name(name, &kind);
    if (length == 0)
        return;
    for (uint32_t i = 0; i < self->n; i++)
        if (strlen(self->files[i].name) == length && memcmp(self->files[i].name, name, length) == 0)
            return;
    if (!grow((void **)&self->files, self->n, &self->capacity, sizeof *self->files, MOST_FILES))
        return;
    struct observe_file *file = &self->files[self->n++];
    *file = (struct observe_file){.kind = kind, .idle = NAN, .value = NAN};
    memcpy(file->name, name, length);
}

static void scan(struct observe_files *self, double now_s)
{
    /* The search goes on even if the clock was set back. */
    if (self->scanned_s > 0 && now_s >= self->scanned_s && now_s - self->scanned_s < SCAN_S)
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

static double number_of(struct json_object *line, const char *name)
{
    struct json_object *value = NULL;
    json_object_object_get_ex(line, name, &value);
    return json_map_real(value, NAN);
}

static uint64_t count_of(struct json_object *line, const char *name)
{
    double number = number_of(line, name);
    return number > 0 && number < 1e18 ? (uint64_t)number : 0;
}

static void add_value(struct observe_files *self, struct json_object *line, double time_s, double value)
{
    if (!grow((void **)&self->values, self->n_values, &self->values_capacity, sizeof *self->values, MOST_VALUES))
        return;
    self->values[self->n_values++] = (struct observe_value){.time_s = time_s,
                                                            .steps = count_of(line, "environment_steps"),
                                                            .learner_steps = count_of(line, "learner_steps"),
                                                            .value = value,
                                                            .seconds = number_of(line, "seconds")};
}

/* A user's own program does not report what it waits for: all its waiting counts as waiting for the other side. */
static enum idle_cause main_cause(enum observe_kind kind)
{
    return kind == OBSERVE_ACTOR ? IDLE_CREDIT : IDLE_SAMPLE;
}

static void take_causes(struct observe_file *file, struct json_object *line)
{
    bool any = false;
    for (int i = 0; i < IDLE_CAUSES; i++) {
        double share = number_of(line, idle_key((enum idle_cause)i));
        any |= !isnan(share);
        file->by[i] = isnan(share) || isnan(file->idle) ? 0.0 : fmin(fmax(share, 0.0), 1.0);
    }
    if (!any && !isnan(file->idle))
        file->by[main_cause(file->kind)] = file->idle;
}

static void take_report(struct observe_files *self, struct observe_file *file, struct json_object *line)
{
    double time_s = number_of(line, "time"), value = number_of(line, "return");
    if (isnan(time_s))
        return;
    file->time_s = time_s;
    if (!isnan(value))
        file->value = value;
    if (file->kind == OBSERVE_EVALUATOR) {
        if (!isnan(value))
            add_value(self, line, time_s, value);
        return;
    }
    double idle = number_of(line, file->kind == OBSERVE_ACTOR ? "blocked_share" : "wait_share");
    file->idle = isnan(idle) ? NAN : fmin(fmax(idle, 0.0), 1.0);
    take_causes(file, line);
}

static void take_line(struct observe_files *self, struct observe_file *file, struct json_tokener *tokener,
                      const char *text, size_t size)
{
    json_tokener_reset(tokener);
    struct json_object *line = json_tokener_parse_ex(tokener, text, (int)size);
    if (line && json_object_is_type(line, json_type_object))
        take_report(self, file, line);
    json_object_put(line);
}

/* Takes the whole lines of a block that begins at the file's offset. Returns by how much the offset moves. */
static size_t take_block(struct observe_files *self, struct observe_file *file, struct json_tokener *tokener,
                         const char *block, size_t size)
{
    size_t done = 0;
    for (const char *end; (end = memchr(block + done, '\n', size - done));) {
        size_t next = (size_t)(end - block) + 1;
        if (!file->skip)
            take_line(self, file, tokener, block + done, next - done);
        file->skip = false;
        done = next;
    }
    if (done == 0 && size == MOST_LINE) {
        file->skip = true;
        done = size;
    }
    file->offset += (int64_t)done;
    return done;
}

/* ---- files ---- */

/* When a file of evaluations was cut, it is read again from the start: drop its evaluations, or the list would hold
 * them twice. */
static void forget_values(struct observe_files *self)
{
    self->n_values = 0;
    for (uint32_t i = 0; i < self->n; i++)
        if (self->files[i].kind == OBSERVE_EVALUATOR)
            self->files[i].offset = 0;
}

static void begin(struct observe_files *self, struct observe_file *file, const struct stat *status)
{
    if (file->kind == OBSERVE_EVALUATOR && file->inode != 0)
        forget_values(self);
    file->inode = status->st_ino;
    file->offset = 0;
    file->skip = false;
    if (file->kind != OBSERVE_EVALUATOR && status->st_size > MOST_LINE) {
        file->offset = status->st_size - MOST_LINE;
        file->skip = true;
    }
}

static void read_rest(struct observe_files *self, struct observe_file *file, int fd, struct json_tokener *tokener,
                      char *block)
{
    for (int64_t budget = MOST_READ; budget > 0;) {
        ssize_t n = pread(fd, block, MOST_LINE, file->offset);
        if (n < 0 && errno == EINTR)
            continue;
        size_t done = n > 0 ? take_block(self, file, tokener, block, (size_t)n) : 0;
        if (done == 0)
            return;
        budget -= (int64_t)done;
    }
}

static void read_file(struct observe_files *self, struct observe_file *file, double now_s, struct json_tokener *tokener,
                      char *block)
{
    char path[600];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s.jsonl", self->folder, file->name);
    /* O_NONBLOCK: a named pipe must not block the launcher. */
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode))
        return;
    bool watched = file->inode == status.st_ino && status.st_size >= file->offset;
    if (!watched)
        begin(self, file, &status);
    if (status.st_size == file->offset)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    int64_t before = file->offset;
    read_rest(self, file, fd, tokener, block);
    close(fd);
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
    struct json_tokener *tokener = json_tokener_new();
    char *block = malloc(MOST_LINE);
    if (tokener && block)
        for (uint32_t i = 0; i < self->n; i++)
            read_file(self, &self->files[i], now_s, tokener, block);
    free(block);
    if (tokener)
        json_tokener_free(tokener);
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
    size_t prefix = strlen(prefixes[OBSERVE_ACTOR]);
    for (uint32_t k = 0; k < n_waiting; k++) {
        bool known = strncmp(waiting[k], prefixes[OBSERVE_ACTOR], prefix) != 0;
        for (uint32_t i = 0; i < self->n && !known; i++)
            known = self->files[i].time_s > 0 && strcmp(self->files[i].name, waiting[k]) == 0;
        n += !known;
    }
    return n;
}

void observe_files_sum(const struct observe_files *self, const char *const *waiting, uint32_t n_waiting, double now_s,
                       struct observation *out)
{
    struct mean idle[OBSERVE_KINDS] = {{0}}, value = {0};
    double by[OBSERVE_KINDS][IDLE_CAUSES] = {{0}};
    /* In the first seconds no process can have reported. */
    if (self->folder[0] && !self->foreign_actors && now_s - self->first_s > LATE_PERIODS * self->every_s) {
        uint32_t silent = count_silent(self, waiting, n_waiting);
        idle[OBSERVE_ACTOR] = (struct mean){.sum = silent, .n = silent};
        by[OBSERVE_ACTOR][IDLE_CREDIT] = silent;
    }
    for (uint32_t i = 0; i < self->n; i++) {
        const struct observe_file *file = &self->files[i];
        double age_s = now_s - file->time_s;
        bool held = file->kind == OBSERVE_ACTOR && file->time_s > 0 && age_s > LATE_PERIODS * self->every_s &&
                    waits(file->name, waiting, n_waiting);
        if (file->time_s <= 0 || (!held && age_s > PERIODS * self->every_s + GRACE_S))
            continue;
        mean_add(&idle[file->kind], held ? 1.0 : file->idle);
        for (int k = 0; k < IDLE_CAUSES; k++)
            by[file->kind][k] += held ? k == IDLE_CREDIT : isnan(file->idle) ? 0.0 : file->by[k];
        if (file->kind == OBSERVE_ACTOR)
            mean_add(&value, file->value);
    }
    for (int k = 0; k < IDLE_CAUSES; k++) {
        out->idle_by.actor[k] = mean_get(&(struct mean){by[OBSERVE_ACTOR][k], idle[OBSERVE_ACTOR].n});
        out->idle_by.learner[k] = mean_get(&(struct mean){by[OBSERVE_LEARNER][k], idle[OBSERVE_LEARNER].n});
    }
    out->actor_idle = mean_get(&idle[OBSERVE_ACTOR]);
    out->learner_idle = mean_get(&idle[OBSERVE_LEARNER]);
    out->actor_value = mean_get(&value);
    out->values = self->n_values;
    const struct observe_value *last = self->n_values > 0 ? &self->values[self->n_values - 1] : NULL;
    out->value = last ? last->value : NAN;
    out->value_steps = last ? last->steps : 0;
    out->value_learner_steps = last ? last->learner_steps : 0;
    out->value_seconds = last ? last->seconds : NAN;
}
