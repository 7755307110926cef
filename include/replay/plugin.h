/* Selectors and table extensions, built in or loaded from a shared object.
 *
 * A plug-in is a shared object that exports one function, rp_plugin_entry, which returns an rp_plugin that lists its
 * selectors and extensions. The broker's configuration names the object (plugins: [./my.so]); its selectors and extensions
 * are then used by name, like the built-in ones.
 *
 * All hooks run on the broker's core thread, inside the operation that they observe. They must not block, and they must
 * not keep a pointer after they return. */
#ifndef REPLAY_PLUGIN_H
#define REPLAY_PLUGIN_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The interface that a plug-in was built for: the broker refuses any other. */
#define RP_PLUGIN_ABI 5u
#define RP_PICK_NO_MEMORY UINT32_MAX

/* One option from the configuration, as written there: {name: "exponent", value: "0.6"}. */
typedef struct rp_option {
    const char *name;
    const char *value;
} rp_option;

/* A selector picks one of the items of a table. Items are named by slots: small numbers below `capacity`, reused after
 * removal. The table guarantees that a slot is inserted once before it is updated or removed, and that priorities
 * passed `check`. */
typedef struct rp_selector_ops {
    const char *name;
    /* Returns the selector's state, or NULL with err set. Unknown options are an error. */
    void *(*create)(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed, rp_error *err);
    void (*destroy)(void *self);
    /* Optional. Returns RP_OK, or an error that says why this priority cannot be used. The table has already checked that
     * the priority is finite and not negative. */
    rp_status (*check)(void *self, double priority, rp_error *err);
    void (*insert)(void *self, uint32_t slot, double priority);
    /* Optional. Sets the priorities of n slots, one after another: a slot may stand there twice. Without it, priorities do not
     * matter to the selector. */
    void (*update)(void *self, uint32_t n, const uint32_t *slots, const double *priorities);
    void (*remove)(void *self, uint32_t slot);
    /* Picks n slots with replacement, and gives the probability of each pick. Returns n, or 0 if the selector is empty. */
    uint32_t (*pick)(void *self, uint32_t n, uint32_t *slots, double *probabilities);
    /* Optional. Picks up to n different slots for which skip is false, as if each pick were removed before the next. Leaves
     * the selector unchanged. Returns the number of picks, or RP_PICK_NO_MEMORY if there is no memory for the first. */
    uint32_t (*pick_distinct)(void *self, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                              uint32_t *slots, double *probabilities);
    /* Optional. Returns the sum of all weights, for information. */
    double (*total)(void *self);
    /* Optional. Prefetches into the cache the memory that the removal of this slot will touch. Changes nothing. */
    void (*prefetch)(void *self, uint32_t slot);
    /* Optional, for checkpoints. A restored selector gets the items by `insert`, or by `put_back` if they were put back, in ascending
     * order of this number, where 0 stands for 2^63 (items with equal numbers, and all items without this function, in the order in
     * which they were inserted). A checkpoint reads the number some time after the moment that it captures: only insert and update of
     * the item may change it, never a pick. */
    uint64_t (*order)(void *self, uint32_t slot);
    /* Optional. Writes state that is not in the items (such as a generator's) to out, at most `size` bytes (currently 4096),
     * and returns the number of bytes; 0: no such state. load restores it after all inserts, into a selector with the same
     * options and items. False: the state does not fit the selector. */
    uint32_t (*save)(void *self, void *out, uint32_t size);
    bool (*load)(void *self, const void *data, uint32_t size);
    /* Optional. Returns the sum of what the probabilities are proportional to; n: number of items. Over
     * shards, a batch is divided among them by this mass. Without it, the selector cannot be the sampler of a sharded table. */
    double (*mass)(void *self, uint32_t n);
    /* Optional. Draws the random numbers of the next picks from this seed on. */
    void (*seed)(void *self, uint64_t seed);
    /* Optional, beside `check`: which takes all priorities from *low to *high, so that it need not be asked for them. */
    void (*bounds)(void *self, double *low, double *high);
    /* Optional. Inserts a slot that was removed for a while, such as an item whose lease has ended: ahead of those that were not, and
     * behind those put back before it, as far as the selector knows an order. Its `order` is below 2^63, and that of all others is
     * not. Without it, `insert` does that. */
    void (*put_back)(void *self, uint32_t slot, double priority);
} rp_selector_ops;

/* An item as an extension sees it. */
typedef struct rp_item_view {
    uint64_t key;
    double priority;
    uint32_t slot;
    uint32_t times_sampled;
    uint32_t session; /* ordinal of the session that inserted it */
    uint32_t episode;
    uint64_t step;   /* its first step in that session's stream */
    uint32_t length; /* steps */
    uint64_t policy; /* version of the parameters that produced it */
    uint64_t bytes;  /* stored bytes of all its chunks */
    int64_t age_ns;
} rp_item_view;

/* The calls that an extension may make to its table. None of them runs the extension's own hooks. */
typedef struct rp_extension_host {
    void *table;
    /* False if the slot is not in use. */
    bool (*view)(void *table, uint32_t slot, rp_item_view *out);
    /* Sets the priority of the item in a slot. False: there is no item, or the priority is not allowed. */
    bool (*set_priority)(void *table, uint32_t slot, double priority);
    /* Inserts the item of a slot, with its key, into another table of this broker. The other table's limiter counts the insert
     * but does not delay it. False if the key is already there, or there is no such table. */
    bool (*copy_to)(void *table, uint32_t slot, const char *other_table, double priority);
} rp_extension_host;

typedef struct rp_extension_ops {
    const char *name;
    void *(*create)(const rp_option *options, uint32_t n_options, uint32_t capacity, const rp_extension_host *host,
                    rp_error *err);
    void (*destroy)(void *self);
    /* All hooks are optional. on_update runs after the change and gets the old priority; on_delete runs before the removal. */
    void (*on_insert)(void *self, const rp_item_view *item);
    void (*on_sample)(void *self, const rp_item_view *item);
    void (*on_update)(void *self, const rp_item_view *item, double old_priority);
    void (*on_delete)(void *self, const rp_item_view *item);
    void (*on_reset)(void *self);
    /* Called for each item that a starting broker loads from a checkpoint or the journal, in the order of insertion. May look
     * at the table, and must not change it. */
    void (*on_restore)(void *self, const rp_item_view *item);
    /* Calls emit once for each number to be shown in the table's information. */
    void (*stats)(void *self, void (*emit)(void *ctx, const char *name, double value), void *ctx);
} rp_extension_ops;

typedef struct rp_plugin {
    uint32_t abi; /* RP_PLUGIN_ABI */
    const char *name;
    const rp_selector_ops *const *selectors; /* NULL-terminated, or NULL */
    const rp_extension_ops *const *extensions;
} rp_plugin;

/* The only symbol that a plug-in exports. */
typedef const rp_plugin *rp_plugin_entry_fn(void);
RP_API const rp_plugin *rp_plugin_entry(void);

#ifdef __cplusplus
}
#endif

#endif
