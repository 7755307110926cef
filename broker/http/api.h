/* A snapshot as JSON: what each path below /api shows. */
#ifndef BROKER_HTTP_API_H
#define BROKER_HTTP_API_H

#include "broker/http/threads.h"
#include "broker/metrics/snapshot.h"
#include "proto/base/json.h"

void api_info(struct json *out, const struct snapshot *snapshot, const struct threads *threads, int64_t now_ns);
void api_tables(struct json *out, const struct snapshot *snapshot);
/* False: there is no such table, and nothing was written. */
bool api_table(struct json *out, const struct snapshot *snapshot, const char *name);
void api_sessions(struct json *out, const struct snapshot *snapshot);
void api_why(struct json *out, const struct snapshot *snapshot);
void api_params(struct json *out, const struct snapshot *snapshot);
void api_latency(struct json *out, const struct snapshot *snapshot);

#endif
