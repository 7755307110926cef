/* Effects: what a room tells whoever keeps a record of the state, right after it has changed something.
 *
 * loop->effects is NULL while nobody keeps a record; telling is a test of that pointer then. journal/ implements the
 * operations. Rooms below it know this interface alone.
 *
 * Not effects: chunks and items that wait (writers keep and send again what is not resolved), rounds of a reduce (members
 * try again), statistics such as rates and mean ages, and counts that only inform (evictions, episodes). */
#ifndef BROKER_EFFECTS_H
#define BROKER_EFFECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chunk;
struct counter;
struct flow;
struct rejection;
struct session;
struct slot;
struct table;
struct waiter;

struct effects {
    /* Before an insert: makes sure that it can be recorded. False: no memory; nothing has changed. */
    bool (*prepare)(struct effects *self, struct chunk *const *chunks, uint32_t n);
    /* Tables. flow: whose item it is, or NULL if an extension inserted it. */
    void (*insert)(struct effects *self, struct table *table, uint32_t slot, const struct flow *flow);
    void (*remove)(struct effects *self, struct table *table, uint32_t slot);
    void (*priority)(struct effects *self, struct table *table, uint32_t slot, double priority);
    void (*reset)(struct effects *self, struct table *table);
    void (*limiter)(struct effects *self, struct table *table);
    /* A slot was picked for a waiter, and is about to be counted. */
    void (*pick)(struct effects *self, const struct waiter *waiter, uint32_t slot, double probability);
    /* The sample that (client, id) asked for was answered; or nobody will ask for it again. */
    void (*answered)(struct effects *self, uint64_t client, uint64_t id);
    void (*forget)(struct effects *self, uint64_t client, uint64_t id);
    /* Sessions. */
    void (*session)(struct effects *self, const struct session *session);
    void (*session_end)(struct effects *self, const struct session *session);
    /* A layout as the writer registered it. */
    void (*form)(struct effects *self, const struct session *session, const void *layout, size_t size);
    /* The session's numbers and credit, if they have changed since this was last called. Before a client is told. */
    void (*progress)(struct effects *self, struct session *session);
    void (*rejection)(struct effects *self, const struct session *session, const struct rejection *rejection);
    /* Parameters and requests. */
    void (*slot)(struct effects *self, struct slot *slot);
    void (*counter)(struct effects *self, const struct counter *counter);
    void (*reply)(struct effects *self, uint64_t client, uint64_t id, const void *frame, size_t size);
    /* Effects of up to so many bytes that follow go into one record: after a crash all of them are there, or none. */
    void (*together)(struct effects *self, size_t bytes);
    /* The same for all up to a large one, in a record that has begun: what is sent before that one waits for it, too. */
    void (*begin)(struct effects *self);
};

/* EFFECT(loop, remove, table, slot): tells of a removal, if somebody keeps a record. */
#define EFFECT(loop, name, ...)                                                                                        \
    do {                                                                                                               \
        struct effects *effects_ = (loop)->effects;                                                                    \
        if (__builtin_expect(effects_ != NULL, 0))                                                                     \
            effects_->name(effects_, __VA_ARGS__);                                                                     \
    } while (0)

#endif
