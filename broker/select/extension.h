/* The built-in table extensions, and the selectors and extensions of plug-ins. Extensions know a table only through the calls of
 * rp_extension_host.
 *
 * To add an extension: an rp_extension_ops in extension.c, and its place in the list there. */
#pragma once

#include "proto/config/schema.h"
#include "replay/plugin.h"

/* NULL: no built-in extension has this name. */
const rp_extension_ops *extension_builtin(const char *name);
/* Names in order of i. NULL: i is too large. */
const char *extension_builtin_name(uint32_t i);

/* Shared objects with further selectors and extensions. */
struct plugins {
    void **handles;
    const rp_plugin **list;
    uint32_t count;
};

/* Loads all plug-ins. An error names the file and the reason. */
rp_status plugins_load(struct plugins *self, const struct schema_list *paths, rp_error *err);
void plugins_fini(struct plugins *self);

/* Both look for a built-in one first. NULL: no such name. */
const rp_selector_ops *plugins_selector(const struct plugins *self, const char *name);
const rp_extension_ops *plugins_extension(const struct plugins *self, const char *name);
