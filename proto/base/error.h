/* Helpers that fill an rp_error.
 *
 * The room proto/base is the ground floor, used by the broker, the client library and all programs: errors, clocks, random
 * numbers, logs, dtypes, UTF-8, endpoints, checksums, and text for people and machines (format, json,
 * json_map). It uses no other room. Every header is a module of its own. */
#pragma once

#include "replay/error.h"

/* Sets code and sentence, and returns the code: return err_set(err, RP_NOT_FOUND, "no table '%s'", name). err may be NULL. A
 * macro, so that a reader of the code and static checkers see that the result is never RP_OK. */
#define err_set(err, status, ...) (err_fill(err, status, __VA_ARGS__), err_same(status))
static inline rp_status err_same(rp_status status)
{
    return status;
}
/* The same for a function that returns a pointer: the result is NULL. */
#define err_null(err, status, ...) (err_fill(err, status, __VA_ARGS__), NULL)
void err_fill(rp_error *err, rp_status status, const char *format, ...) RP_PRINTF(3, 4);

/* Inserts "prefix: " before the text. */
void err_prefix(rp_error *err, const char *format, ...) RP_PRINTF(2, 3);

/* Returns from the calling function if expr is not RP_OK. */
#define RP_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        rp_status rp_try_status_ = (expr);                                                                             \
        if (rp_try_status_ != RP_OK)                                                                                   \
            return rp_try_status_;                                                                                     \
    } while (0)
