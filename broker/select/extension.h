/* The built-in table extensions. They know a table only through the calls of rp_extension_host, as those of plug-ins do.
 *
 * To add an extension: an rp_extension_ops in extension.c, and its place in the list there. */
#ifndef BROKER_EXTENSION_H
#define BROKER_EXTENSION_H

#include "replay/plugin.h"

/* NULL: no built-in extension has this name. */
const rp_extension_ops *extension_builtin(const char *name);
/* Names in order of i. NULL: i is too large. */
const char *extension_builtin_name(uint32_t i);

#endif
