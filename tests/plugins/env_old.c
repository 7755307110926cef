/* A plug-in for another version of the interface. */
#include "replay/env.h"

static const rp_env_plugin plugin = {.abi = RP_ENV_ABI + 1, .name = "env_old"};

const rp_env_plugin *rp_env_plugin_entry(void)
{
    return &plugin;
}
