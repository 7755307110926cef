/* A log line as one JSON object: {"time": ..., "level": ..., "id": ..., "text": ..., and a member for each field}. */
#ifndef PROTO_LOG_JSON_H
#define PROTO_LOG_JSON_H

#include <stddef.h>

struct log_parts {
    const char *time, *level, *id, *what;
    const char *fields; /* "name=actor-3 why=\"no room\"", as log_line formats them; "": none */
};

/* Writes the line with its end; returns its length, at most size (at least 512). Quoted values become strings, numbers stay
 * numbers, true and false are what they say, everything else is a string. A field that is called like one of the first four
 * members gets an underscore: "text_". What does not fit is left out: the line is always a whole object of valid UTF-8. */
size_t log_json(char *out, size_t size, const struct log_parts *parts);

#endif
