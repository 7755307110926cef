/* episodes.jsonl: episodes to look at, one of each evaluation: the last one, drawn step by step (agent/env/picture.h). The evaluator
 * writes the file into the run's folder, and the page plays it.
 *
 * A line is one recording: {"head": {...}, "scene": [...], "frames": [[step, return, action, picture], ...]}. In shapes, a picture is a
 * list of numbers: kind and role of each shape, then x, y, x2, y2, size of a line, x, y, size of a circle, x, y, x2, y2 of a box, in a
 * frame that is 1000 wide and head.height high, y downwards; "scene" has the shapes that do not change. In pixels (head.width is not
 * 0), it is a text of runs, three digits of base 64 each: the length less one, and 4 bits each of red, green and blue.
 * A return or an action that is not a finite number is null.
 *
 * Everything is bounded: RECORDING_BYTES for the frames of a recording, of which long episodes lose every second one, again and again;
 * RECORDINGS_KEPT recordings, of which the first, the newest and the best stay, and the others lie as far apart as can be. */
#pragma once

#include "agent/env/env.h"
#include "agent/run/best.h"
#include "proto/base/json.h"

#define RECORDING_FILE "episodes.jsonl"
#define RECORDING_BYTES (256u << 10)
#define RECORDINGS_KEPT 16u

struct recording;

/* folder: of the run; NULL or "": nothing is recorded, and NULL is returned. fresh: an existing file is removed. */
struct recording *recording_new(const char *folder, bool fresh);
void recording_destroy(struct recording **self);
/* Begins an episode; what was recorded before and not saved is dropped. */
void recording_begin(struct recording *self, const struct env *env, const void *observation);
/* Adds a step; action: as env_step takes it. */
void recording_step(struct recording *self, const struct env *env, const void *observation, const void *action,
                    const rp_env_result *result);
/* Saves the episode as that of an evaluation. NULL, or nothing recorded, is fine. A failing disk is logged. */
void recording_save(struct recording *self, const char *environment, const struct best *evaluation);

/* Writes {"episodes": [head, ...]}, the oldest first, of the newest `most`. */
void recording_put_list(struct json *out, const char *folder, uint32_t most);
/* Returns the recording whose head has this `at`, or the newest one, and sets its `at`, as JSON; NULL: there is none. */
char *recording_read(const char *folder, bool newest, uint64_t *at);
