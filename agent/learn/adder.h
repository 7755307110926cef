/* Adders turn what an actor sees into items of a replay table. They own the kinds of items and use the client library;
 * they know nothing of environments or algorithms.
 *
 *   adder_first(adder, observation_0)
 *   adder_add(adder, &step)                 once per environment step
 *
 * All share one stream of steps per actor: each observation is stored once, and items are slices.
 *
 * transition: items of (s_t, a_t, R, D, s_{t+k}) with fields observation, action, reward, discount,
 *   next_observation.
 *   R = r_t + g d_t r_{t+1} + ... over k steps; D = g^(k-1) times the product of d; the learner applies the last g. k is n
 *   except at the start of an episode (s_0 -> s_1 ... s_0 -> s_n) and at its end (s_{T-n+1} -> s_T ... s_{T-1} -> s_T):
 *   T + min(n, T) - 1 items for T steps.
 * sequence: items of `length` steps of all columns, the first at step `length`, then every `period` steps (sequence.h). The last
 *   observation of an episode is a step of its own (LAST) with zero action, reward and discount.
 *   End of an episode: pad with zero steps up to the next write point; truncate (a shorter item); write the last `length`
 *   steps; continue into the next episode.
 * episode: one item at the end, with its last observation; an episode longer than max_length is refused.
 *
 * d is 0 after a terminal step and 1 otherwise, also when truncated.
 *
 * An item's policy is the version that took its first action, the oldest in it. A priority from the actor's values
 * is |R + g D value(s_{t+k}) - q(s_t, a_t)|, without the bootstrap after a terminal step; none is below 1e-6, as a
 * prioritized table never picks an item of priority 0. adder.c says exactly which
 * items come out. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/learn/sequence.h"
#include "proto/base/dtype.h"
#include "proto/config/schema.h"
#include "replay/client.h"
#include "replay/env.h"
#include "replay/writer.h"

/* A prioritized table never picks an item of priority 0. */
#define ADDER_MIN_PRIORITY 1e-6
/* Priority of a new item that nobody has judged. */
#define ADDER_PRIORITY 1.0

enum adder_kind { ADDER_TRANSITION, ADDER_SEQUENCE, ADDER_EPISODE };
enum adder_end { ADDER_PAD, ADDER_TRUNCATE, ADDER_WRITE, ADDER_CONTINUE };

struct adder_config {
    int32_t kind;
    char *table;
    int64_t n_step;                  /* transition */
    int64_t length, period, burn_in; /* sequence */
    int32_t end;                     /* sequence; an adder_end */
    int64_t max_length;              /* episode */
    double discount;                 /* transition: g */
    bool actor_priorities;           /* transition: from the actor's own values; otherwise ADDER_PRIORITY */
    int64_t chunk_length;            /* rows stored together; 0: 1 */
    int64_t batch_items;             /* sent together; 0: a quarter of buffer_items, 4096 at most */
    int64_t buffer_items; /* created but not confirmed; 0: 200. Bounds the speed: about one round trip per buffer */
};

/* One step of an actor. The observation in which it acted is known from the previous call. */
struct adder_step {
    const void *action;
    float reward;
    bool terminal, truncated;
    const void *next_observation;
    float value;      /* value of the observation in which the action was taken; for priorities */
    float q;          /* value of the action taken */
    float last_value; /* value of next_observation; read only if truncated */
    float log_prob;   /* stored if the adder was made with it */
};

struct adder_stats {
    uint64_t steps, episodes, items;
    uint64_t rejected; /* items that the broker refused, as far as the adder has looked */
};

struct adder;

struct adder_options {
    rp_client *client;
    const char *name;                  /* of the writer */
    const struct adder_config *config; /* borrowed during adder_new */
    const rp_env_spec *spec;
    bool with_log_prob;
    int64_t timeout_ms; /* to open the writer */
};

/* Columns: transition: observation, action, reward, discount; sequence and episode: observation, action, reward,
 * discount, step_type, and log_prob if with_log_prob. NULL with err set: also when the broker's table does not take
 * such items. */
struct adder *adder_new(const struct adder_options *options, rp_error *err);
/* Waits for confirmation of everything for as long as timeout_ms, then closes. Steps of an unfinished episode that
 * are in no item are dropped. Nulls *self. */
rp_status adder_destroy(struct adder **self, int64_t timeout_ms, rp_error *err);

#define ADDER_MAX_FIELDS 6u
/* Gives the fields of the items that such an adder makes, with static names; needs no client. Returns their number; 0 with err set. */
uint32_t adder_fields(const struct adder_options *options, struct field_type out[ADDER_MAX_FIELDS], rp_error *err);

/* Begins an episode; the previous one must have ended. */
rp_status adder_first(struct adder *self, const void *observation, rp_error *err);
/* Waits while the buffer is full: the limiter's back-pressure. RP_DEADLINE_EXCEEDED after timeout_ms: part of the
 * step is still to be done; call adder_retry until it is, then go on. A step with a number that is not finite is
 * refused and leaves no trace. Items that the broker refused are counted, and logged with its reason. They are an error, of
 * a call that ends an episode, of every 256th step or of flush, only when the broker has refused 256 in a row. */
rp_status adder_add(struct adder *self, const struct adder_step *step, int64_t timeout_ms, rp_error *err);
rp_status adder_retry(struct adder *self, int64_t timeout_ms, rp_error *err);
/* The same as adder_retry, and then waits until half of the items in flight are confirmed: an actor that continued
 * after each confirmation would send a message and wake half a dozen threads for each item. */
rp_status adder_wait(struct adder *self, int64_t timeout_ms, rp_error *err);
/* Waits until at most `unconfirmed` items are not confirmed. */
rp_status adder_flush(struct adder *self, uint64_t unconfirmed, int64_t timeout_ms, rp_error *err);
/* Sets the version of the parameters that act from now on. */
void adder_set_policy(struct adder *self, uint64_t version);
void adder_get_stats(const struct adder *self, struct adder_stats *out);
