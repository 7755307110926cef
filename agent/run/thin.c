/* Lines are our own, so the few numbers that matter are searched, not parsed. */
#include "agent/run/thin.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/io.h"
#include "proto/base/need.h"
#include "proto/base/text.h"

/* ---- whole records ---- */

void record_file_close(struct record_file *self)
{
    if (self->fd >= 0)
        close(self->fd);
    *self = (struct record_file){.fd = -1};
}

/* Where the last whole line ends, 0 if there is none; -1: the file cannot be read. */
static int64_t end_of_lines(int fd, int64_t size)
{
    char block[4096];
    while (size > 0) {
        int64_t part = size < (int64_t)sizeof block ? size : (int64_t)sizeof block;
        ssize_t n = pread(fd, block, (size_t)part, size - part);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != part) {
            errno = n < 0 ? errno : EIO;
            return -1;
        }
        const char *newline = memrchr(block, '\n', (size_t)part);
        if (newline)
            return size - part + (newline - block) + 1;
        size -= part;
    }
    return 0;
}

bool record_file_open(struct record_file *self, const char *path, bool fresh)
{
    record_file_close(self);
    /* O_NONBLOCK: a pipe must not make the caller wait for a reader; it is refused below. */
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | (fresh ? O_EXCL : 0), 0666);
    if (fd < 0)
        return false;
    struct stat status;
    int64_t size = -1;
    if (fstat(fd, &status) == 0) {
        if (S_ISREG(status.st_mode))
            size = end_of_lines(fd, status.st_size);
        else
            errno = EINVAL;
    }
    if (size < 0 || (size < status.st_size && ftruncate(fd, size) != 0)) {
        int error = errno;
        close(fd);
        errno = error;
        return false;
    }
    self->fd = fd;
    self->size = size;
    return true;
}

bool record_file_append(struct record_file *self, const void *data, size_t size)
{
    if (io_write(self->fd, data, size, IO_HERE)) {
        self->size += (int64_t)size;
        return true;
    }
    int error = errno;
    if (ftruncate(self->fd, self->size) != 0)
        record_file_close(self);
    errno = error;
    return false;
}

/* ---- thinning ---- */

#define GROWTH_LEAST 600u /* lines */
#define GROWTH_PART 8u    /* of the lines that were kept */

/* Widths divide one another: a line that is the first of a wide bucket is also the first of a narrow one. */
static const struct tier {
    double age_s, width_s;
} tiers[] = {{7 * 86400.0, 600.0}, {12 * 3600.0, 60.0}, {3600.0, 10.0}};
#define TIERS (sizeof tiers / sizeof *tiers)

struct fact {
    char *line;
    double at, event, memory, cpu, value; /* at: its time; NAN: not a line of ours */
    bool keep;
};

struct facts {
    const char *key; /* of the time */
    struct fact *list;
    size_t n, room;
};

/* ---- what lines are about ---- */

double thin_number(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    char *end = NULL;
    double value = at ? strtod(at + strlen(key), &end) : NAN;
    return at && end != at + strlen(key) ? value : NAN;
}

/* Takes all lines of a file. */
static bool take_lines(struct facts *self, const char *path)
{
    FILE *from = fopen(path, "re");
    char *line = NULL;
    size_t bytes = 0;
    for (ssize_t size; from && (size = getline(&line, &bytes, from)) > 0; line = NULL, bytes = 0) {
        if (self->n == self->room)
            self->list = need_resize(self->list, self->room = self->room ? 2 * self->room : 4096, sizeof *self->list);
        bool whole = size > 2 && line[0] == '{' && line[size - 2] == '}' && line[size - 1] == '\n';
        self->list[self->n++] = (struct fact){.line = line,
                                              .at = whole ? thin_number(line, self->key) : NAN,
                                              .event = thin_number(line, "\"event_unix_s\": "),
                                              .memory = thin_number(line, "\"memory\": "),
                                              .cpu = thin_number(line, "\"cpu\": "),
                                              .value = thin_number(line, "\"return\": ")};
    }
    free(line);
    bool ok = from && !ferror(from);
    if (from)
        fclose(from);
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

bool line_file_thin(struct line_file *self)
{
    struct facts facts = {.key = self->key};
    struct text text = {0};
    uint64_t lines = 0;
    self->added = 0; /* after a failure, too: the next try comes when the file has grown again */
    bool ok = take_lines(&facts, self->path);
    decide(&facts);
    for (size_t i = 0; i < facts.n; i++) {
        if (facts.list[i].keep)
            text_put(&text, facts.list[i].line, strlen(facts.list[i].line));
        lines += facts.list[i].keep;
        free(facts.list[i].line);
    }
    ok = ok && !text.failed && io_replace(self->path, text.data, text.size, 0666, false);
    if (ok) {
        self->kept = lines;
        record_file_close(&self->file); /* it is another file now: the next line opens it */
    }
    text_fini(&text);
    free(facts.list);
    return ok;
}

void line_file_init(struct line_file *self, char *path, const char *key)
{
    *self = (struct line_file){.file.fd = -1, .path = path, .key = key};
}

void line_file_fini(struct line_file *self)
{
    record_file_close(&self->file);
    free(self->path);
    self->path = NULL;
}

bool line_file_open(struct line_file *self)
{
    return self->path && (self->file.fd >= 0 || record_file_open(&self->file, self->path, false));
}

bool line_file_add(struct line_file *self, const char *text)
{
    uint64_t growth = self->kept / GROWTH_PART;
    if (!line_file_open(self))
        return false;
    char *line = need_print("%s\n", text);
    bool ok = record_file_append(&self->file, line, strlen(line));
    int error = errno;
    free(line);
    if (ok && ++self->added >= (growth > GROWTH_LEAST ? growth : GROWTH_LEAST))
        line_file_thin(self);
    errno = error;
    return ok;
}
