/* The built-in table extensions. They know a table only through the calls of rp_extension_host, as those of plug-ins do.
 *
 * To add an extension: a file with an rp_extension_ops, its line here, and its place in the list of extension.c. */
#ifndef BROKER_EXTENSION_H
#define BROKER_EXTENSION_H

#include "replay/plugin.h"

extern const rp_extension_ops extension_statistics;         /* no options */
extern const rp_extension_ops extension_priority_diffusion; /* options radius, decay */
extern const rp_extension_ops extension_insert_on_sample;   /* option table */

/* NULL: no built-in extension has this name. */
const rp_extension_ops *extension_builtin(const char *name);
/* Names in order of i. NULL: i is too large. */
const char *extension_builtin_name(uint32_t i);

#endif
