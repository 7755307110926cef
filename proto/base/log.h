/* Structured log lines: "2026-01-31T12:00:00.123Z info  B0101 session opened name=actor-3 ordinal=7".
 * The id is stable, and docs/LOG.md lists it; fields are key=value, quoted if needed. Lines that cannot be written (full disk)
 * are counted, and writing is retried; a log never stops the program. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/error.h"

enum log_level { LEVEL_DEBUG, LEVEL_INFO, LEVEL_WARN, LEVEL_ERROR, LEVEL_OFF };

/* Returns the level of that name; -1 if there is none. */
int log_level_by_name(const char *name);
const char *log_level_name(enum log_level level);
void log_set_level(enum log_level level);
/* Lines are JSON objects from now on (log_json). Without this call they are if REPLAY_LOG_JSON=1 is in the environment: so a
 * launcher tells its children, whatever they are. Lines for rp_log_set stay text. */
#define LOG_JSON_VARIABLE "REPLAY_LOG_JSON"
void log_set_json(bool json);
bool log_is_json(void);
/* Opens the log file; "" or "-" is stderr. */
rp_status log_open(const char *path, rp_error *err);
/* Reopens the file of log_open under its name, after it was renamed or removed. If that fails, lines still go to the old file,
 * and one of them says so. Must not be called from a signal handler. */
void log_reopen(void);
void log_close(void);

/* log_line(LEVEL_INFO, "B0101", "session opened", "name=%s ordinal=%u", name, ordinal). Values that may
 * contain blanks go through log_text. format may be NULL. */
void log_line(enum log_level level, const char *id, const char *what, const char *format, ...) RP_PRINTF(4, 5);
/* Writes s as a JSON string, cut to size. Returns buffer. */
const char *log_quote(char *buffer, uint32_t size, const char *s);
/* Returns s in the same form, cut to 600 bytes, in memory of this thread that serves the next calls in turn: for one line. */
const char *log_text(const char *s);

/* Limits a call site to `burst` lines per second; the next line that is written says how many were suppressed. */
struct log_limit {
    int64_t window_ns;
    uint32_t count;
    uint32_t held;
};
bool log_allow(struct log_limit *limit, uint32_t burst, int64_t now_ns, uint32_t *held);

/* The parts of a line. */
struct log_parts {
    const char *time, *level, *id, *what;
    const char *fields; /* "name=actor-3 why=\"no room\"", as log_line formats them; "": none */
};

/* Writes the line with its end; returns its length, at most size (at least 512). Quoted values become strings, numbers stay
 * numbers, true and false are what they say, everything else is a string. A field that is called like one of the first four
 * members gets an underscore: "text_". What does not fit is left out: the line is always a whole object of valid UTF-8. */
size_t log_json(char *out, size_t size, const struct log_parts *parts);
