/* Plug-ins: shared objects with further selectors and extensions. Looks up both by name, built-in ones first. */
#ifndef BROKER_PLUGIN_H
#define BROKER_PLUGIN_H

#include "proto/config/schema.h"
#include "replay/plugin.h"

struct plugins {
    void **handles;
    const rp_plugin **list;
    uint32_t count;
};

/* Loads all plug-ins. An error names the file and the reason. */
rp_status plugins_load(struct plugins *self, const struct schema_list *paths, rp_error *err);
void plugins_fini(struct plugins *self);

/* NULL: no such name. */
const rp_selector_ops *plugins_selector(const struct plugins *self, const char *name);
const rp_extension_ops *plugins_extension(const struct plugins *self, const char *name);

#endif
