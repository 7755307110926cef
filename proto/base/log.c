/* The log. A line is formatted on the caller's stack and written by one write(2), so that lines of several threads, or of several
 * processes that append to one file, never mix. The lock guards the descriptor and the failure counts. */
#include "proto/base/log.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/utf8.h"
#include "replay/log.h"

#define LINE_BYTES 2048
#define JSON_BYTES 4096 /* no more: a pipe takes it whole */
#define PATIENCE_MS 10

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};

static atomic_int threshold = LEVEL_INFO;
static atomic_int as_json = -1; /* -1: as the environment says */

static struct {
    pthread_mutex_t lock;
    char path[PATH_MAX]; /* empty: standard error */
    int fd;
    bool owned;      /* close the descriptor at the end */
    bool may_block;  /* not a regular file: a reader may be slow, or close its end */
    bool torn;       /* the last line was cut: start a new line first */
    int error;       /* errno of the last write; 0: it succeeded */
    uint64_t missed; /* lines lost since the last successful write */
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = STDERR_FILENO, .may_block = true};

/* Takes lines instead of the sink, with the lock held for reading. */
static struct {
    pthread_rwlock_t lock;
    rp_log_fn *fn;
    void *ctx;
} taker = {.lock = PTHREAD_RWLOCK_INITIALIZER};

int log_level_by_name(const char *name)
{
    for (int i = LEVEL_DEBUG; i <= LEVEL_OFF; i++) {
        if (name && strcasecmp(name, level_names[i]) == 0)
            return i;
    }
    return -1;
}

const char *log_level_name(enum log_level level)
{
    return level >= LEVEL_DEBUG && level <= LEVEL_OFF ? level_names[level] : "unknown";
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

void log_set_json(bool json)
{
    atomic_store_explicit(&as_json, json, memory_order_relaxed);
}

bool log_is_json(void)
{
    int json = atomic_load_explicit(&as_json, memory_order_relaxed);
    if (json < 0) {
        const char *text = getenv(LOG_JSON_VARIABLE);
        json = text && strcmp(text, "1") == 0;
        log_set_json(json);
    }
    return json;
}

static void sink_use(const char *path, int fd, bool owned)
{
    struct stat status;
    bool may_block = fstat(fd, &status) != 0 || !S_ISREG(status.st_mode);
    pthread_mutex_lock(&sink.lock);
    int old = sink.owned ? sink.fd : -1;
    snprintf(sink.path, sizeof sink.path, "%s", path);
    sink.fd = fd;
    sink.owned = owned;
    sink.may_block = may_block;
    sink.torn = false;
    sink.error = 0;
    sink.missed = 0;
    pthread_mutex_unlock(&sink.lock);
    if (old >= 0)
        close(old);
}

rp_status log_open(const char *path, rp_error *err)
{
    if (!path || path[0] == '\0' || strcmp(path, "-") == 0) {
        sink_use("", STDERR_FILENO, false);
        return RP_OK;
    }
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_set(err, RP_IO, "the log '%s' cannot be opened: %s", path, strerror(errno));
    sink_use(path, fd, true);
    return RP_OK;
}

void log_reopen(void)
{
    char path[PATH_MAX];
    rp_error err = {0};
    pthread_mutex_lock(&sink.lock);
    memcpy(path, sink.path, sizeof path);
    pthread_mutex_unlock(&sink.lock);
    if (path[0] == '\0')
        return;
    if (log_open(path, &err) == RP_OK)
        log_line(LEVEL_INFO, "L0002", "the log was opened anew", NULL);
    else
        log_line(LEVEL_ERROR, "L0003", "the log goes on in the old file", "why=%s", log_text(err.text));
}

void log_close(void)
{
    sink_use("", STDERR_FILENO, false);
}

/* Writes without letting a slow or vanished reader stop the program. Waits a moment for room, the first time only; a line is
 * short enough for a pipe to take it whole. Discards the SIGPIPE of this write. */
static ssize_t write_guarded(int fd, const char *data, size_t size)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    if (poll(&room, 1, sink.missed > 0 ? 0 : PATIENCE_MS) == 0) {
        errno = EAGAIN;
        return -1;
    }
    sigset_t pipe_set, before, pending;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigpending(&pending);
    bool was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_set, &before);
    ssize_t n = write(fd, data, size);
    int error = errno;
    if (n < 0 && error == EPIPE && !was_pending) {
        const struct timespec at_once = {0, 0};
        while (sigtimedwait(&pipe_set, NULL, &at_once) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return n;
}

/* Lock held. False: the line was not written, or only in part; sink.error says why. */
static bool sink_write(const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = sink.may_block ? write_guarded(sink.fd, data, size) : write(sink.fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            sink.error = n < 0 ? errno : EIO;
            return false;
        }
        data += n;
        size -= (size_t)n;
        sink.torn = size > 0;
    }
    return true;
}

static void put_time(char out[32])
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out + n, 32 - n, ".%03dZ", (int)(now.tv_nsec / NS_PER_MS));
}

/* ---- a line as JSON. No allocation: a log line must get out when memory is short. */

#define KEY_MOST 64u
#define DIGITS_MOST 15u
#define END_ROOM 2u /* bytes for the end of the object and of the line */

/* Writes a member, or leaves it out if it does not fit. plain: the value is JSON already. */
static void put_member(struct json *self, const char *key, const char *value, bool plain)
{
    struct json before = *self;
    json_key(self, key);
    if (plain)
        json_raw(self, value);
    else
        json_string(self, value);
    if (self->out.failed)
        *self = before;
}

/* True for what JSON calls a number. Ids of 16 digits are none: many readers would round them. */
static bool is_json_number(const char *at)
{
    static const char digits[] = "0123456789";
    if (strlen(at) > DIGITS_MOST && !strchr(at, '.'))
        return false;
    at += *at == '-';
    size_t n = strspn(at, digits);
    if (n == 0 || (*at == '0' && n > 1))
        return false;
    at += n;
    if (*at == '.' && (n = strspn(at + 1, digits)) > 0)
        at += n + 1;
    if (*at == 'e' || *at == 'E') {
        const char *power = at + 1 + (at[1] == '+' || at[1] == '-');
        n = strspn(power, digits);
        at = n > 0 ? power + n : at;
    }
    return *at == '\0';
}

/* True for a whole string as log_quote writes it, which is JSON. Not every quoted value is one, and a line may have been cut. */
static bool is_string(const char *at, size_t size)
{
    size_t i = 1;
    for (; i + 1 < size; i++) {
        if ((unsigned char)at[i] < 0x20)
            return false;
        if (at[i] != '\\')
            continue;
        i++;
        if (at[i] == 'u' ? strspn(at + i + 1, "0123456789abcdef") < 4 : !strchr("\"\\bfnrt", at[i]))
            return false;
    }
    return i + 1 == size && at[0] == '"' && at[i] == '"' && utf8_valid(at, size);
}

/* Length of the key if a field begins here; 0: none does. */
static size_t key_at(const char *at)
{
    size_t n = 0;
    while (islower((unsigned char)at[n]) || at[n] == '_' || (n > 0 && isdigit((unsigned char)at[n])))
        n++;
    return n > 0 && n < KEY_MOST - 1 && at[n] == '=' ? n : 0;
}

/* Returns the length of the value here: in quotes, or up to the next field. */
static size_t value_at(const char *at)
{
    size_t n = 0;
    if (*at != '"') {
        while (at[n] && !(at[n] == ' ' && (!at[n + 1] || key_at(at + n + 1))))
            n++;
        return n;
    }
    for (n = 1; at[n] && at[n] != '"'; n++)
        n += at[n] == '\\' && at[n + 1];
    return n + (at[n] == '"');
}

static const char *put_field(struct json *self, const char *at, size_t length)
{
    static const char *const taken[] = {"time", "level", "id", "text"};
    char key[KEY_MOST + 1], value[LINE_BYTES];
    snprintf(key, sizeof key, "%.*s", (int)length, at);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (strcmp(key, taken[i]) == 0)
            snprintf(key, sizeof key, "%s_", taken[i]);
    at += length + 1;
    size_t n = value_at(at);
    snprintf(value, sizeof value, "%.*s", (int)n, at);
    bool plain =
        is_string(value, n) || strcmp(value, "true") == 0 || strcmp(value, "false") == 0 || is_json_number(value);
    put_member(self, key, value, plain);
    return at + n;
}

size_t log_json(char *out, size_t size, const struct log_parts *parts)
{
    struct json self = {.out = {.data = out, .capacity = size - END_ROOM, .fixed = true}};
    json_open(&self, '{');
    put_member(&self, "time", parts->time, false);
    put_member(&self, "level", parts->level, false);
    put_member(&self, "id", parts->id, false);
    put_member(&self, "text", parts->what, false);
    for (const char *at = parts->fields; *at;) {
        size_t length = key_at(at);
        at = length ? put_field(&self, at, length) : at + 1;
    }
    self.out.capacity = size;
    text_put(&self.out, "}\n", 2);
    return self.out.size;
}

/* ---- lines */

/* "2026-01-31T12:00:00.123Z info  B0101 what fields", without control characters, so that a line stays one line. cut: the
 * fields were longer. The end of a line that was cut is marked. */
static size_t format_text(char line[LINE_BYTES], const struct log_parts *parts, bool cut)
{
    int n = snprintf(line, LINE_BYTES - 1, "%s %-5s %s %s%s%s", parts->time, parts->level, parts->id, parts->what,
                     parts->fields[0] ? " " : "", parts->fields);
    size_t used = n >= LINE_BYTES - 1 ? LINE_BYTES - 2 : n < 0 ? 0 : (size_t)n;
    for (size_t i = 0; i < used; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    if (cut || n >= LINE_BYTES - 1) {
        memcpy(line + LINE_BYTES - 5, "...", 3);
        used = LINE_BYTES - 2;
    }
    line[used++] = '\n';
    return used;
}

/* Lock held. Reports the number of lost lines, once writing works again. */
static bool report_missed(void)
{
    char line[LINE_BYTES], fields[192], time[32];
    put_time(time);
    snprintf(fields, sizeof fields, "count=%llu error=%s", (unsigned long long)sink.missed,
             log_text(strerror(sink.error)));
    const struct log_parts parts = {time, log_level_name(LEVEL_WARN), "L0001", "log lines were lost", fields};
    size_t n = log_is_json() ? log_json(line, sizeof line, &parts) : format_text(line, &parts, false);
    if (sink.torn && !sink_write("\n", 1))
        return false;
    sink.torn = false;
    return sink_write(line, n);
}

static void submit(const char *line, size_t size)
{
    pthread_mutex_lock(&sink.lock);
    bool ok = sink.missed == 0 || report_missed();
    if (ok)
        sink.missed = 0;
    ok = ok && sink_write(line, size);
    sink.error = ok ? 0 : sink.error;
    sink.missed += !ok;
    pthread_mutex_unlock(&sink.lock);
}

/* False: no hook takes lines. */
static bool hand_over(enum log_level level, char *line, size_t size)
{
    pthread_rwlock_rdlock(&taker.lock);
    bool taken = taker.fn != NULL;
    if (taken) {
        line[size - 1] = '\0';
        taker.fn(taker.ctx, (int32_t)level, line);
    }
    pthread_rwlock_unlock(&taker.lock);
    return taken;
}

/* A thread that held a lock when the process forked is not in the child. */
static void renew_locks(void)
{
    pthread_mutex_init(&sink.lock, NULL);
    pthread_rwlock_init(&taker.lock, NULL);
}

static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, renew_locks);
}

void rp_log_set(rp_log_fn *fn, void *ctx, int32_t level)
{
    pthread_once(&forks_watched, watch_forks);
    pthread_rwlock_wrlock(&taker.lock);
    taker.fn = fn;
    taker.ctx = ctx;
    pthread_rwlock_unlock(&taker.lock);
    log_set_level(level < LEVEL_DEBUG ? LEVEL_DEBUG : level > LEVEL_OFF ? LEVEL_OFF : (enum log_level)level);
}

void log_line(enum log_level level, const char *id, const char *what, const char *format, ...)
{
    if ((int)level < atomic_load_explicit(&threshold, memory_order_relaxed) || level >= LEVEL_OFF)
        return;
    int saved_errno = errno;
    char line[JSON_BYTES], fields[LINE_BYTES] = "", time[32];
    bool cut = false;
    if (format) {
        va_list args;
        va_start(args, format);
        cut = vsnprintf(fields, sizeof fields, format, args) >= (int)sizeof fields;
        va_end(args);
    }
    put_time(time);
    const struct log_parts parts = {time, log_level_name(level), id, what, fields};
    pthread_once(&forks_watched, watch_forks);
    size_t n = format_text(line, &parts, cut);
    if (!hand_over(level, line, n))
        submit(line, log_is_json() ? log_json(line, sizeof line, &parts) : n);
    errno = saved_errno;
}

const char *log_quote(char *buffer, uint32_t size, const char *s)
{
    struct json self = {.out = {.data = buffer, .capacity = size > 2 ? size - 2 : 0, .fixed = true}};
    json_string(&self, s);
    if (self.out.failed && self.out.size > 0)
        buffer[self.out.size++] = '"';
    if (size > 0)
        buffer[self.out.size] = '\0';
    return buffer;
}

const char *log_text(const char *s)
{
    static _Thread_local char texts[4][600];
    static _Thread_local uint32_t next;
    char *text = texts[next++ % 4];
    return log_quote(text, sizeof texts[0], s);
}

bool log_allow(struct log_limit *limit, uint32_t burst, int64_t now_ns, uint32_t *held)
{
    if (limit->count == 0 || now_ns - limit->window_ns >= NS_PER_S || now_ns < limit->window_ns) {
        limit->window_ns = now_ns;
        limit->count = 0;
    }
    if (limit->count >= burst) {
        limit->held++;
        return false;
    }
    limit->count++;
    if (held)
        *held = limit->held;
    limit->held = 0;
    return true;
}
