/* The calls that an extension may make to its table. */
#ifndef BROKER_EXTENSION_HOST_H
#define BROKER_EXTENSION_HOST_H

#include "replay/plugin.h"

struct table;

rp_extension_host extension_host(struct table *table);

#endif
