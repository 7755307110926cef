#include "broker/extension/extension.h"

#include <string.h>

static const rp_extension_ops *const builtin[] = {&extension_statistics, &extension_priority_diffusion,
                                                  &extension_insert_on_sample};
#define N_BUILTIN (sizeof builtin / sizeof builtin[0])

const rp_extension_ops *extension_builtin(const char *name)
{
    for (uint32_t i = 0; i < N_BUILTIN; i++)
        if (strcmp(builtin[i]->name, name) == 0)
            return builtin[i];
    return NULL;
}

const char *extension_builtin_name(uint32_t i)
{
    return i < N_BUILTIN ? builtin[i]->name : NULL;
}
