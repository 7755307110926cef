/* The room agent/client/admin: the calls of replay/admin.h. admin.c asks, and reads answers by name; fetch.c has items, by key and as
 * JSON; trace.c has traces. gather.c asks all shards of a broker at once and makes one answer of theirs: no caller needs to know how
 * many there are.
 *
 * Rooms that know the messages read an answer by them, as its type: ADMIN_AS(InfoReply, info)->n_tables. */
#pragma once

#include <stdbool.h>

#include "agent/client/conn/client.h"
#include "proto/base/json.h"
#include "replay/admin.h"

#define ADMIN_AS(Type, info) ((const Replay__##Type *)(const void *)(info))

/* Writes one element of an array as a JSON value: half floats are widened, complex numbers are [real, imaginary]. */
void admin_json_element(struct json *out, int32_t dtype, const void *at);
/* Writes an object for item i: its metadata and fields, at most max_values numbers of each field. */
void admin_json_item(struct json *out, const rp_batch *batch, uint32_t i, uint32_t max_values);
