/* See history.h. Thinning reads the file twice: the first pass finds what each line is about, the second copies the lines that
 * stay. Lines are our own, so the few numbers that matter are searched, not parsed. */
#include "agent/launch/observe/history.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/error.h"

#define GROWTH_LEAST 600u /* lines */
#define GROWTH_PART 8u    /* of the lines that were kept */

/* Widths divide one another: a line that is the first of a wide bucket is also the first of a narrow one. */
static const struct tier {
    double age_s, width_s;
} tiers[] = {{7 * 86400.0, 600.0}, {12 * 3600.0, 60.0}, {3600.0, 10.0}};
#define TIERS (sizeof tiers / sizeof *tiers)

struct fact {
    double at, event, memory, cpu; /* at: seconds of the run; NAN: not a line of ours */
    bool keep;
};

struct facts {
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

static bool facts_add(struct facts *self, const char *line)
{
    if (self->n == self->room) {
        size_t room = self->room ? 2 * self->room : 4096;
        struct fact *list = realloc(self->list, room * sizeof *list);
        if (!list)
            return false;
        self->list = list;
        self->room = room;
    }
    size_t size = strlen(line);
    bool whole = size > 2 && line[0] == '{' && line[size - 2] == '}' && line[size - 1] == '\n';
    self->list[self->n++] = (struct fact){.at = whole ? number_of(line, "\"elapsed_s\": ") : NAN,
                                          .event = number_of(line, "\"event_unix_s\": "),
                                          .memory = number_of(line, "\"memory\": "),
                                          .cpu = number_of(line, "\"cpu\": ")};
    return true;
}

/* Calls take for each line of the file. False: take refused one, or the file cannot be read. */
static bool each_line(FILE *file, bool (*take)(void *ctx, const char *line, size_t i), void *ctx)
{
    char *line = NULL;
    size_t room = 0;
    bool ok = true;
    rewind(file);
    for (size_t i = 0; ok && getline(&line, &room, file) > 0; i++)
        ok = take(ctx, line, i);
    free(line);
    return ok && !ferror(file);
}

static bool take_fact(void *ctx, const char *line, size_t i)
{
    (void)i;
    return facts_add(ctx, line);
}

/* ---- what stays ---- */

static double bucket_of(double at, double age_s)
{
    for (size_t i = 0; i < TIERS; i++)
        if (age_s >= tiers[i].age_s)
            return floor(at / tiers[i].width_s) * tiers[i].width_s;
    return at;
}

/* The newest lines that differ from the line before them by their event. */
static void keep_events(struct facts *self)
{
    uint32_t left = HISTORY_EVENTS;
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

static void keep_peak(struct facts *self, size_t member)
{
    struct fact *peak = NULL;
    double most = 0;
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
    keep_peak(self, offsetof(struct fact, memory));
    keep_peak(self, offsetof(struct fact, cpu));
    for (size_t i = 0; i < self->n; i++) {
        struct fact *fact = &self->list[i];
        if (isnan(fact->at))
            continue;
        double age_s = now - fact->at;
        if (!before || age_s < tiers[TIERS - 1].age_s || bucket_of(fact->at, age_s) != bucket_of(before->at, age_s))
            fact->keep = true;
        before = fact;
    }
}

/* ---- the file ---- */

struct copy {
    const struct facts *facts;
    FILE *to;
    uint64_t lines;
};

/* Lines that were added since the first pass stay. */
static bool take_copy(void *ctx, const char *line, size_t i)
{
    struct copy *self = ctx;
    if (i < self->facts->n && !self->facts->list[i].keep)
        return true;
    self->lines++;
    return fputs(line, self->to) >= 0;
}

rp_status history_thin(struct history *self, rp_error *err)
{
    char temporary[sizeof self->path + 8];
    struct facts facts = {0};
    rp_status status = RP_OK;
    snprintf(temporary, sizeof temporary, "%s.new", self->path);
    unlink(temporary); /* of a launcher that was killed */
    FILE *from = fopen(self->path, "re");
    struct copy copy = {.facts = &facts, .to = fopen(temporary, "ae")};
    bool ok = from && copy.to && each_line(from, take_fact, &facts);
    if (ok) {
        decide(&facts);
        ok = each_line(from, take_copy, &copy) && fflush(copy.to) == 0 && rename(temporary, self->path) == 0;
    }
    if (ok) {
        if (self->file)
            fclose(self->file);
        self->file = copy.to;
        self->kept = copy.lines;
        self->cut = false;
    } else {
        status = err_set(err, RP_IO, "'%s' cannot be made shorter: %s", self->path, strerror(errno));
        if (copy.to)
            fclose(copy.to);
        unlink(temporary);
    }
    self->added = 0; /* after a failure, too: the next try comes when the file has grown again */
    if (from)
        fclose(from);
    free(facts.list);
    return status;
}

/* Ends a line that a crash has cut, so that the next line is whole. */
static void end_last_line(struct history *self)
{
    FILE *file = fopen(self->path, "re");
    bool cut = file && fseek(file, -1, SEEK_END) == 0 && fgetc(file) != '\n';
    if (file)
        fclose(file);
    if (cut)
        fputc('\n', self->file);
}

rp_status history_open(struct history *self, const char *path, rp_error *err)
{
    *self = (struct history){0};
    snprintf(self->path, sizeof self->path, "%s", path);
    self->file = fopen(path, "ae");
    if (!self->file)
        return err_set(err, RP_IO, "'%s' cannot be written: %s", path, strerror(errno));
    end_last_line(self);
    fflush(self->file);
    history_thin(self, NULL); /* a full disk does not keep a run from its start */
    return RP_OK;
}

void history_add(struct history *self, const char *text)
{
    uint64_t growth = self->kept / GROWTH_PART;
    if (!self->file)
        return;
    /* A full disk may have cut the line before: this one stands apart from it. */
    bool written = fprintf(self->file, "%s%s\n", self->cut ? "\n" : "", text) > 0 && fflush(self->file) == 0;
    self->cut = !written;
    clearerr(self->file);
    if (++self->added >= (growth > GROWTH_LEAST ? growth : GROWTH_LEAST))
        history_thin(self, NULL);
}

void history_close(struct history *self)
{
    if (self->file)
        fclose(self->file);
    self->file = NULL;
}
