/* Table extensions: the built-in ones, and the host calls that all of them get. */
#ifndef BROKER_EXTENSION_H
#define BROKER_EXTENSION_H

#include "replay/plugin.h"

struct table;

extern const rp_extension_ops extension_statistics;         /* no options */
extern const rp_extension_ops extension_priority_diffusion; /* options radius, decay */
extern const rp_extension_ops extension_insert_on_sample;   /* option table */

const rp_extension_ops *extension_builtin(const char *name);
/* The calls that an extension of this table may make. */
rp_extension_host extension_host(struct table *table);

#endif
