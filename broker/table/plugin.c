#include "broker/table/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "broker/select/extension.h"
#include "broker/select/selector.h"
#include "proto/base/error.h"

static rp_status load(struct plugins *self, const char *path, rp_error *err)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return err_set(err, RP_IO, "plug-in %s: %s", path, dlerror());
    self->handles[self->count] = handle;
    rp_plugin_entry_fn *entry = NULL;
    *(void **)(&entry) = dlsym(handle, "rp_plugin_entry");
    const rp_plugin *plugin = entry ? entry() : NULL;
    self->list[self->count++] = plugin;
    if (!plugin)
        return err_set(err, RP_INVALID_ARGUMENT, "plug-in %s: it does not export rp_plugin_entry", path);
    if (plugin->abi != RP_PLUGIN_ABI)
        return err_set(err, RP_UNSUPPORTED, "plug-in %s: built for interface %u, this broker has %u: compile it again",
                       path, plugin->abi, RP_PLUGIN_ABI);
    return RP_OK;
}

rp_status plugins_load(struct plugins *self, const struct schema_list *paths, rp_error *err)
{
    *self = (struct plugins){0};
    if (!paths->count)
        return RP_OK;
    self->handles = calloc(paths->count, sizeof(void *));
    self->list = calloc(paths->count, sizeof(*self->list));
    if (!self->handles || !self->list)
        return err_set(err, RP_NO_MEMORY, "no memory for plug-ins");
    char *const *names = paths->data;
    for (uint32_t i = 0; i < paths->count; i++)
        RP_TRY(load(self, names[i], err));
    return RP_OK;
}

void plugins_fini(struct plugins *self)
{
    for (uint32_t i = 0; i < self->count; i++)
        dlclose(self->handles[i]);
    free(self->handles);
    free(self->list);
    *self = (struct plugins){0};
}

const rp_selector_ops *plugins_selector(const struct plugins *self, const char *name)
{
    const rp_selector_ops *builtin = selector_builtin(name);
    for (uint32_t i = 0; !builtin && i < self->count; i++)
        for (const rp_selector_ops *const *at = self->list[i]->selectors; at && *at; at++)
            if (strcmp((*at)->name, name) == 0)
                return *at;
    return builtin;
}

const rp_extension_ops *plugins_extension(const struct plugins *self, const char *name)
{
    const rp_extension_ops *builtin = extension_builtin(name);
    for (uint32_t i = 0; !builtin && i < self->count; i++)
        for (const rp_extension_ops *const *at = self->list[i]->extensions; at && *at; at++)
            if (strcmp((*at)->name, name) == 0)
                return *at;
    return builtin;
}
