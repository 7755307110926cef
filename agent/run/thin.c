/* Thinning reads the file twice: the first pass finds what each line is about, the second copies the lines that stay. Lines
 * are our own, so the few numbers that matter are searched, not parsed. */
#include "agent/run/thin.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/need.h"

#define GROWTH_LEAST 600u /* lines */
#define GROWTH_PART 8u    /* of the lines that were kept */

/* Widths divide one another: a line that is the first of a wide bucket is also the first of a narrow one. */
static const struct tier {
    double age_s, width_s;
} tiers[] = {{7 * 86400.0, 600.0}, {12 * 3600.0, 60.0}, {3600.0, 10.0}};
#define TIERS (sizeof tiers / sizeof *tiers)

struct fact {
    double at, event, memory, cpu, value; /* at: its time; NAN: not a line of ours */
    bool keep;
};

struct facts {
    const char *key; /* of the time; NULL: the lines are rows that begin with it */
    struct fact *list;
    size_t n, room;
};

/* ---- what lines are about ---- */

/* Finds a number by its key. The quotes of a text within the line are escaped, so a text cannot look like a key. */
static double number_of(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    char *end = NULL;
    double value = at ? strtod(at + strlen(key), &end) : NAN;
    return at && end != at + strlen(key) ? value : NAN;
}

static bool take_fact(void *ctx, FILE *to, const char *line, size_t i)
{
    struct facts *self = ctx;
    (void)to;
    if (i == self->room) {
        self->room = self->room ? 2 * self->room : 4096;
        self->list = need_resize(self->list, self->room, sizeof *self->list);
    }
    size_t size = strlen(line);
    bool whole = size > 2 && line[size - 1] == '\n' && (!self->key || (line[0] == '{' && line[size - 2] == '}'));
    bool names = !self->key && i == 0; /* of the columns */
    self->list[i] = (struct fact){.at = whole ? number_of(line, self->key ? self->key : "") : NAN,
                                  .event = number_of(line, "\"event_unix_s\": "),
                                  .memory = number_of(line, "\"memory\": "),
                                  .cpu = number_of(line, "\"cpu\": "),
                                  .value = number_of(line, "\"return\": "),
                                  .keep = names};
    self->n = i + 1;
    return true;
}

/* Calls take for each line of the file. False: take refused one, or the file cannot be read. */
static bool each_line(FILE *from, FILE *to, bool (*take)(void *ctx, FILE *to, const char *line, size_t i), void *ctx)
{
    char *line = NULL;
    size_t room = 0;
    bool ok = true;
    for (size_t i = 0; ok && getline(&line, &room, from) > 0; i++)
        ok = take(ctx, to, line, i);
    free(line);
    return ok && !ferror(from);
}

bool thin_rewrite(const char *path, bool (*write)(void *ctx, FILE *to, const char *line, size_t i), void *ctx,
                  bool sync)
{
    char *temporary = need_print("%s.tmp", path);
    FILE *from = fopen(path, "re"), *to = from ? fopen(temporary, "we") : NULL;
    bool ok = to && each_line(from, to, write, ctx) && fflush(to) == 0 && (!sync || fsync(fileno(to)) == 0);
    int error = errno;
    if (from)
        fclose(from);
    if (to && fclose(to) != 0 && ok) { /* a network's file system may say only now that it is full */
        ok = false;
        error = errno;
    }
    errno = error;
    ok = ok && rename(temporary, path) == 0;
    error = errno;
    if (to && !ok)
        unlink(temporary);
    free(temporary);
    errno = error;
    return ok;
}

/* ---- what stays ---- */

double thin_width(double age_s)
{
    for (size_t i = 0; i < TIERS; i++)
        if (age_s >= tiers[i].age_s)
            return tiers[i].width_s;
    return 0;
}

static double bucket_of(double at, double width_s)
{
    return width_s > 0 ? floor(at / width_s) * width_s : at;
}

/* The newest lines that differ from the line before them by their event. */
static void keep_events(struct facts *self)
{
    uint32_t left = THIN_EVENTS;
    const struct fact *after = NULL;
    for (size_t i = self->n; left > 0 && i-- > 0;) {
        struct fact *fact = &self->list[i];
        if (isnan(fact->at))
            continue;
        if (after && after->event > 0 && after->event != fact->event) {
            self->list[after - self->list].keep = true;
            left--;
        }
        after = fact;
    }
}

static void keep_peak(struct facts *self, size_t member, double most)
{
    struct fact *peak = NULL;
    for (size_t i = 0; i < self->n; i++) {
        double value;
        memcpy(&value, (const char *)&self->list[i] + member, sizeof value);
        if (!isnan(self->list[i].at) && value > most) {
            most = value;
            peak = &self->list[i];
        }
    }
    if (peak)
        peak->keep = true;
}

static void decide(struct facts *self)
{
    const struct fact *before = NULL;
    double now = 0;
    for (size_t i = 0; i < self->n; i++)
        now = self->list[i].at > now ? self->list[i].at : now;
    keep_events(self);
    keep_peak(self, offsetof(struct fact, memory), 0);
    keep_peak(self, offsetof(struct fact, cpu), 0);
    keep_peak(self, offsetof(struct fact, value), -INFINITY);
    for (size_t i = 0; i < self->n; i++) {
        struct fact *fact = &self->list[i];
        if (isnan(fact->at))
            continue;
        double width_s = thin_width(now - fact->at);
        if (!before || width_s == 0 || bucket_of(fact->at, width_s) != bucket_of(before->at, width_s))
            fact->keep = true;
        before = fact;
    }
}

/* ---- the file ---- */

struct copy {
    const struct facts *facts;
    uint64_t lines;
};

/* Lines that were added since the first pass stay. */
static bool copy_line(void *ctx, FILE *to, const char *line, size_t i)
{
    struct copy *self = ctx;
    if (i < self->facts->n && !self->facts->list[i].keep)
        return true;
    self->lines++;
    return fputs(line, to) >= 0;
}

bool thin_file(struct thin *self, const char *path, const char *key)
{
    struct facts facts = {.key = key};
    struct copy copy = {.facts = &facts};
    self->added = 0; /* after a failure, too: the next try comes when the file has grown again */
    FILE *from = fopen(path, "re");
    bool ok = from && each_line(from, NULL, take_fact, &facts);
    if (from)
        fclose(from);
    if (ok)
        decide(&facts);
    ok = ok && thin_rewrite(path, copy_line, &copy, false);
    if (ok)
        self->kept = copy.lines;
    free(facts.list);
    return ok;
}

bool thin_is_due(struct thin *self)
{
    uint64_t growth = self->kept / GROWTH_PART;
    return ++self->added >= (growth > GROWTH_LEAST ? growth : GROWTH_LEAST);
}
