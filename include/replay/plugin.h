/* Selectors and table extensions, built in or loaded from a shared object.
 *
 * A plug-in is a shared object that exports one function, rp_plugin_entry, which returns an rp_plugin that lists what it
 * offers. The broker's configuration names the object (plugins: [./my.so]); after that its selectors and extensions are
 * used by name like the built-in ones.
 *
 * All hooks run on the broker's core thread, inside the operation that they observe. They must not block, and they must
 * not keep pointers past their return. */
#ifndef REPLAY_PLUGIN_H
#define REPLAY_PLUGIN_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_PLUGIN_ABI 2u
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
    /* Gives the selector's state, or NULL with err set. Unknown options are an error. */
    void *(*create)(const rp_option *options, uint32_t n_options, uint32_t capacity, uint64_t seed, rp_error *err);
    void (*destroy)(void *self);
    /* Optional. RP_OK, or an error that says why this priority can not be used. Finite and non-negative is checked by
     * the table already. */
    rp_status (*check)(void *self, double priority, rp_error *err);
    void (*insert)(void *self, uint32_t slot, double priority);
    void (*update)(void *self, uint32_t slot, double priority);
    void (*remove)(void *self, uint32_t slot);
    /* Picks up to n slots, with replacement, and the probability with which each was picked. Returns how many: n, or 0
     * when there are none. */
    uint32_t (*pick)(void *self, uint32_t n, uint32_t *slots, double *probabilities);
    /* Optional. Picks up to n different slots, none of them skipped, one after another as if each pick were taken out
     * before the next. Leaves the selector as it was. Returns how many, or RP_PICK_NO_MEMORY if there is no memory for the
     * first. */
    uint32_t (*pick_distinct)(void *self, uint32_t n, bool (*skip)(void *ctx, uint32_t slot), void *ctx,
                              uint32_t *slots, double *probabilities);
    /* Optional. The sum of all weights, for information. */
    double (*total)(void *self);
    /* Optional. Start bringing the memory that an update of this slot will touch into the cache. Changes nothing. */
    void (*prefetch)(void *self, uint32_t slot);
    /* Optional, for checkpoints. A restored selector gets the items by `insert`, in ascending order of this number (and
     * of their age among equals; without this function in the order in which they were inserted). A checkpoint asks for
     * it some time after the instant that it is of: of an item, only insert and update may change it, and no pick. */
    uint64_t (*order)(void *self, uint32_t slot);
    /* Optional. Writes what is not in the items (a generator's state) to out, at most `size` bytes (4096 now), and gives
     * how many; 0: nothing is kept. load puts it back after all inserts, into a selector with the same options and
     * items. False: it does not fit. */
    uint32_t (*save)(void *self, void *out, uint32_t size);
    bool (*load)(void *self, const void *data, uint32_t size);
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
    uint64_t policy; /* version of the parameters that made it */
    uint64_t bytes;  /* stored, of all its chunks */
    int64_t age_ns;
} rp_item_view;

/* What an extension may ask of the table that it belongs to. None of these calls runs the extension's own hooks. */
typedef struct rp_extension_host {
    void *table;
    /* False if there is no such slot in use. */
    bool (*view)(void *table, uint32_t slot, rp_item_view *out);
    /* Sets the priority of the item in a slot. False: no such item, or a priority that is not allowed. */
    bool (*set_priority)(void *table, uint32_t slot, double priority);
    /* Inserts the item of a slot, with its key, into another table of this broker: past the limiter, but counted by it.
     * False if the key is there already, or there is no such table. */
    bool (*copy_to)(void *table, uint32_t slot, const char *other_table, double priority);
} rp_extension_host;

typedef struct rp_extension_ops {
    const char *name;
    void *(*create)(const rp_option *options, uint32_t n_options, uint32_t capacity, const rp_extension_host *host,
                    rp_error *err);
    void (*destroy)(void *self);
    /* All hooks are optional. on_update runs after the change, with the priority before it; on_delete before. */
    void (*on_insert)(void *self, const rp_item_view *item);
    void (*on_sample)(void *self, const rp_item_view *item);
    void (*on_update)(void *self, const rp_item_view *item, double old_priority);
    void (*on_delete)(void *self, const rp_item_view *item);
    void (*on_reset)(void *self);
    /* The item was in the table before the broker started: it comes from a checkpoint or the journal. In the order of
     * insertion; may look at the table, and changes nothing. */
    void (*on_restore)(void *self, const rp_item_view *item);
    /* Calls emit once for each figure that should be shown in the table's information. */
    void (*stats)(void *self, void (*emit)(void *ctx, const char *name, double value), void *ctx);
} rp_extension_ops;

typedef struct rp_plugin {
    uint32_t abi; /* RP_PLUGIN_ABI */
    const char *name;
    const rp_selector_ops *const *selectors; /* NULL-terminated, or NULL */
    const rp_extension_ops *const *extensions;
} rp_plugin;

/* The one symbol that a plug-in exports. */
typedef const rp_plugin *rp_plugin_entry_fn(void);
RP_API const rp_plugin *rp_plugin_entry(void);

#ifdef __cplusplus
}
#endif

#endif
