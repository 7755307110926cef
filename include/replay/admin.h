/* Inspects and operates a broker. Each answer can be read by name or turned into JSON text: 64-bit numbers as JSON numbers, bytes as
 * hexadecimal strings, NaN and infinities as the strings "NaN", "Infinity" and "-Infinity".
 *
 * A broker of several shards is one broker here: all shards are asked at once, and their answers become one. Counts, sizes,
 * rates, bytes, bounds and cursors are sums; ages and staleness are means over recent samples. A shard that does not answer
 * holds up the others by a second at most: what only reads leaves it out and names it, what changes something fails and names it. */
#ifndef REPLAY_ADMIN_H
#define REPLAY_ADMIN_H

#include <stdint.h>

#include "replay/client.h"
#include "replay/error.h"
#include "replay/sampler.h"
#include "replay/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An answer of the broker: an object with numbers, texts, further objects and lists of them, under the names that the messages of
 * replay.proto give them; docs/METRICS.md says what the numbers mean. A path goes through objects by dots: of an answer of
 * rp_admin_info,
 *     rp_info_u64(info, "server.memory_bytes")
 *     rp_info_real(rp_info_find(info, "tables", "replay"), "limiter.cursor")
 * Objects and texts inside an answer live until the answer is freed. A name that the broker does not know, a number of an object that
 * is not there, and any question to NULL give 0, "" or NULL. */
typedef struct rp_info rp_info;

RP_API void rp_info_free(rp_info **info);
/* Numbers are converted to the type that is asked for; a truth value is 0 or 1. */
RP_API uint64_t rp_info_u64(const rp_info *info, const char *path);
RP_API int64_t rp_info_i64(const rp_info *info, const char *path);
RP_API double rp_info_real(const rp_info *info, const char *path);
RP_API const char *rp_info_text(const rp_info *info, const char *path);
/* The length of a list; an object that is no list has the length 1. */
RP_API uint32_t rp_info_count(const rp_info *info, const char *path);
/* Element i of a list of objects; the object itself for i 0 where there is no list. NULL: there is none. */
RP_API const rp_info *rp_info_at(const rp_info *info, const char *path, uint32_t i);
/* The element of a list with this name. */
RP_API const rp_info *rp_info_find(const rp_info *info, const char *path, const char *name);
/* Gives an answer, or an object of it, as JSON text: free it with rp_string_free. */
RP_API rp_status rp_info_json(const rp_info *info, char **json, rp_error *err);
RP_API void rp_string_free(char **text);

/* Gives the state of the broker, an InfoReply: server, tables, slots, counters, and for several shards what each says by itself.
 * table NULL: all tables. sessions 1: also the list of sessions, which may be long. Free *out with rp_info_free, as in all calls below. */
RP_API rp_status rp_admin_info(rp_client *client, const char *table, uint32_t sessions, int64_t timeout_ms,
                               rp_info **out, rp_error *err);
/* Gives everything that waits inside the broker, with reasons: a WhyReply with the list "waits". */
RP_API rp_status rp_admin_why(rp_client *client, int64_t timeout_ms, rp_info **out, rp_error *err);
/* A cursor of rp_admin_list is a place in the table of a shard, and above these bits the number of the shard. Any place below the
 * size of that table may be given, to look at a part of it. */
#define RP_CURSOR_BITS 40
/* Lists up to `limit` items of a table, starting at `cursor` (0: the first): a ListReply with "items", and the "cursor" of the next
 * page, or 0 after the last one. limit 0: as many as one reply may have. The items of shards come one shard after another; a page
 * without items names in "shards" one that does not answer. */
RP_API rp_status rp_admin_list(rp_client *client, const char *table, uint64_t cursor, uint32_t limit,
                               int64_t timeout_ms, rp_info **out, rp_error *err);
/* Fetches items by key; a fetch does not count as a sample. Missing keys are left out: see the batch's keys. n may be 0.
 * RP_FAILED_PRECONDITION: the items do not all have the same fields; fetch them in groups that do. */
RP_API rp_status rp_admin_fetch(rp_client *client, const char *table, const uint64_t *keys, uint32_t n,
                                int64_t timeout_ms, rp_batch **out, rp_error *err);
/* Gives the items of a batch as {"items": [{"key": ..., "priority": ..., "fields": {"name": {"dtype", "shape", "values"}}}]}; at
 * most max_values numbers of each field are written, and "truncated" says whether there are more. */
RP_API rp_status rp_batch_json(const rp_batch *batch, uint32_t max_values, char **json, rp_error *err);

/* The next three change something. out may be NULL. */

/* Removes all items of a table and sets its limiter to zero: a ChangeReply, whose "applied" counts the items. */
RP_API rp_status rp_admin_reset(rp_client *client, const char *table, int64_t timeout_ms, rp_info **out, rp_error *err);
/* Makes a checkpoint of the broker's whole state and waits until it is on disk; the broker keeps serving meanwhile: a
 * CheckpointReply. After a time-out the broker still completes the checkpoint. With shards the number is that of the first shard,
 * and the items and bytes are those of all. RP_FAILED_PRECONDITION: the broker's configuration names no folder for checkpoints. */
RP_API rp_status rp_admin_checkpoint(rp_client *client, int64_t timeout_ms, rp_info **out, rp_error *err);

/* `set` names the members that are changed; the others are ignored. */
typedef enum rp_limiter_field {
    RP_LIMITER_SAMPLES_PER_INSERT = 1,
    RP_LIMITER_MIN_SIZE = 2,
    RP_LIMITER_MIN_DIFF = 4,
    RP_LIMITER_MAX_DIFF = 8,
    RP_LIMITER_ERROR_BUFFER = 16, /* sets both bounds around min_size * samples_per_insert */
    RP_LIMITER_PAUSE = 32,        /* inserts and samples wait until RP_LIMITER_GO; a restart of the broker ends it */
    RP_LIMITER_GO = 64,
    RP_LIMITER_MAX_LAG = 128, /* of the table and of a limiter `lag`; without that a restart ends it */
} rp_limiter_field;

typedef struct rp_limiter_change {
    uint32_t struct_size;
    uint32_t set; /* rp_limiter_field bits */
    double samples_per_insert, min_size, min_diff, max_diff, error_buffer, max_lag;
} rp_limiter_change;

/* Changes a table's limiter while the broker runs, and gives it as it is then: a LimiterInfo. Checks every value before it changes any;
 * the change is in force when the call returns. Bounds that error_buffer has set follow a new ratio or min_size. With a journal
 * or a checkpoint the change survives a restart, until the configuration of the limiter is changed. With shards, each gets its part
 * of min_size, min_diff, max_diff and error_buffer, and a shard that is away keeps the old limiter until it is changed again. */
RP_API rp_status rp_admin_set_limiter(rp_client *client, const char *table, const rp_limiter_change *change,
                                      int64_t timeout_ms, rp_info **out, rp_error *err);

/* Records a trace of the broker and of all clients that take part, and gives it in Chrome's trace format, as an array of events:
 * Perfetto and Chrome's developer tools open it. Waits for duration_ms, at most a minute. RP_FAILED_PRECONDITION: another trace is
 * being recorded. */
RP_API rp_status rp_admin_trace_json(rp_client *client, int64_t duration_ms, char **json, rp_error *err);

#ifdef __cplusplus
}
#endif

#endif
