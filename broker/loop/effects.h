/* Effects: changes of the state that must be recorded. A room reports an effect right after it has made the change.
 *
 * loop->effects is NULL while nobody keeps a record; a report then costs a test of that pointer. journal/ implements the
 * operations, which append to loop->record. Rooms below it know this interface and the entries (entries.h).
 *
 * Not effects: waiting chunks and items (writers keep and resend unresolved ones), rounds of a reduce (members retry),
 * statistics such as rates and mean ages, and counts that only inform (evictions). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chunk;
struct param_counter;
struct flow;
struct recorder;
struct rejection;
struct session;
struct param_slot;
struct param_stage;
struct table;
struct waiter;

struct effects {
    /* Appends an entry (entries.h) and returns its body, to be filled in: EFFECT_ENTRY. */
    void *(*entry)(struct recorder *to, uint16_t type, uint32_t table, size_t size);
    /* Before an insert: makes sure that the insert can be recorded. False: no memory, and nothing has changed. */
    bool (*prepare)(struct recorder *to, struct chunk *const *chunks, uint32_t n);
    /* Tables. flow: the item is the flow's next one; NULL: an extension inserted it. */
    void (*insert)(struct recorder *to, struct table *table, uint32_t slot, const struct flow *flow);
    /* Before an insert into this slot: the item is a member of a group. */
    void (*group)(struct recorder *to, struct table *table, uint32_t slot);
    void (*limiter)(struct recorder *to, struct table *table);
    /* A slot was picked for a waiter; the sample is about to be counted. */
    void (*pick)(struct recorder *to, const struct waiter *waiter, uint32_t slot, double probability);
    /* Sessions. */
    void (*session)(struct recorder *to, const struct session *session);
    /* A layout as the writer registered it. */
    void (*layout)(struct recorder *to, const struct session *session, const void *layout, size_t size);
    /* The session's numbers and credit, if they have changed since the last call. Before the client is notified. */
    void (*progress)(struct recorder *to, struct session *session);
    void (*rejection)(struct recorder *to, const struct session *session, const struct rejection *rejection);
    /* Parameters and requests. */
    void (*slot)(struct recorder *to, struct param_slot *slot);
    /* A part of a large value came; or what there is of the value is not wanted any more. */
    void (*part)(struct recorder *to, struct param_stage *stage, uint32_t part);
    void (*stage_end)(struct recorder *to, const struct param_stage *stage);
    void (*counter)(struct recorder *to, const struct param_counter *counter);
    void (*reply)(struct recorder *to, uint64_t client, uint64_t id, const void *frame, size_t size);
    /* The following effects, of up to `bytes` bytes in total, go into one record: after a crash all of them are there, or none. */
    void (*together)(struct recorder *to, size_t bytes);
    /* The same for all effects up to a large one, in a record that has begun: messages sent before the large one wait for it, too. */
    void (*begin)(struct recorder *to);
};

/* EFFECT(loop, limiter, table): reports a change of the limiter, if somebody keeps a record. */
#define EFFECT(loop, name, ...)                                                                                        \
    do {                                                                                                               \
        const struct effects *effects_ = (loop)->effects;                                                              \
        if (__builtin_expect(effects_ != NULL, 0))                                                                     \
            effects_->name((loop)->record, __VA_ARGS__);                                                               \
    } while (0)
/* EFFECT_ENTRY(loop, ENTRY_REMOVE, table->id, entry_slot, .slot = slot): an effect whose entry is this struct alone. */
#define EFFECT_ENTRY(loop, type, table, body, ...)                                                                     \
    do {                                                                                                               \
        const struct effects *effects_ = (loop)->effects;                                                              \
        if (__builtin_expect(effects_ != NULL, 0))                                                                     \
            *(struct body *)effects_->entry((loop)->record, type, table, sizeof(struct body)) =                        \
                (struct body){__VA_ARGS__};                                                                            \
    } while (0)
