/* The log of a process: it is kept from growing without bound, and its last lines are made fit for a terminal and for
 * JSON. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/process/process.h"
#include "proto/base/utf8.h"

enum { WINDOW = 65536, LINE_MOST = 400 };

/* Reads the last bytes since the start, at most WINDOW of them; out has room for WINDOW + 1. */
static size_t read_window(const struct process *self, char *out)
{
    struct stat info;
    size_t used = 0;
    int fd = open(self->log, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &info) == 0) {
        off_t from = info.st_size < self->log_start ? 0 : (off_t)self->log_start; /* another program has cut the log */
        if (info.st_size - from > WINDOW)
            from = info.st_size - WINDOW;
        for (ssize_t n; used < WINDOW && (n = pread(fd, out + used, WINDOW - used, from + (off_t)used)) > 0;)
            used += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    out[used] = '\0';
    return used;
}

/* Returns the length of the escape sequence at s: colours and the like. */
static size_t escape_length(const char *s, const char *end)
{
    const char *at = s + 1;
    if (at < end && *at == '[') {
        at++;
        while (at < end && *at >= 0x20 && *at < 0x40)
            at++;
        return (size_t)(at - s) + (at < end && *at >= 0x40);
    }
    if (at < end && *at == ']') { /* a title: ends with a bell or another escape */
        while (at < end && *at != '\a' && *at != '\033')
            at++;
        return (size_t)(at - s) + (at < end && *at == '\a');
    }
    return 1;
}

/* Keeps what a terminal would show of the line, without control characters. Works in place; returns the length. */
static size_t clean_line(char *line, size_t size)
{
    char *end = line + size, *from = line;
    size_t n = 0;
    while (end > line && end[-1] == '\r')
        end--;
    for (char *s = line; s < end; s++) {
        if (*s == '\r') /* a progress bar: only its last state counts */
            from = s + 1;
    }
    for (char *s = from; s < end; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\033') {
            s += escape_length(s, end) - 1;
        } else if (c == 0xc2 && s + 1 < end && (unsigned char)s[1] >= 0x80 && (unsigned char)s[1] < 0xa0) {
            line[n++] = '?'; /* control characters of two bytes */
            s++;
        } else {
            line[n++] = c == '\t' ? ' ' : c < 0x20 || c == 0x7f ? '?' : *s;
        }
    }
    while (n > 0 && line[n - 1] == ' ')
        n--;
    utf8_clean(line, n);
    return n;
}

static bool continues(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Keeps the two ends of a line that is too long. Works in place; returns the length. */
static size_t shorten(char *line, size_t size)
{
    static const char gap[] = " ... ";
    if (size <= LINE_MOST)
        return size;
    size_t head = LINE_MOST / 2, tail = LINE_MOST / 2 - (sizeof gap - 1);
    while (head > 0 && continues(line[head]))
        head--;
    while (tail > 0 && continues(line[size - tail]))
        tail--;
    memcpy(line + head, gap, sizeof gap - 1);
    memmove(line + head + sizeof gap - 1, line + size - tail, tail);
    return head + sizeof gap - 1 + tail;
}

bool process_cut_log(struct process *self, int64_t most)
{
    struct stat info;
    /* The process appends: after the cut it writes at the new end. */
    if (most <= 0 || stat(self->log, &info) != 0 || info.st_size <= most || truncate(self->log, 0) != 0)
        return false;
    self->log_start = 0;
    return true;
}

const char *process_tail(const struct process *self, char *out, size_t size, uint32_t lines)
{
    char *window = malloc(WINDOW + 1);
    if (size > 0)
        out[0] = '\0';
    if (!window || size == 0) {
        free(window);
        return out;
    }
    /* Lines are filled in from the end, then moved to the front. */
    size_t at = size - 1, end = read_window(self, window);
    out[at] = '\0';
    for (uint32_t n = 0; n < lines && end > 0;) {
        size_t start = end;
        while (start > 0 && window[start - 1] != '\n')
            start--;
        size_t length = shorten(window + start, clean_line(window + start, end - start));
        size_t need = length + (n > 0);
        if (length > 0 && need > at)
            break;
        if (length > 0) {
            at -= need;
            memcpy(out + at, window + start, length);
            if (n > 0)
                out[at + length] = '\n';
            n++;
        }
        end = start > 0 ? start - 1 : 0;
    }
    memmove(out, out + at, size - at);
    free(window);
    return out;
}
