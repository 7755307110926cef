#include "broker/select/selector.h"

#include <string.h>

#include "broker/store/reserve.h"
#include "proto/base/error.h"

static const rp_selector_ops *const builtin[] = {
    &selector_fifo, &selector_lifo, &selector_uniform, &selector_min_heap, &selector_max_heap, &selector_prioritized,
};

#define N_BUILTIN ((uint32_t)(sizeof builtin / sizeof builtin[0]))

const rp_selector_ops *selector_builtin(const char *name)
{
    for (uint32_t i = 0; i < N_BUILTIN; i++) {
        if (strcmp(builtin[i]->name, name) == 0)
            return builtin[i];
    }
    return NULL;
}

const char *selector_builtin_name(uint32_t i)
{
    return i < N_BUILTIN ? builtin[i]->name : NULL;
}

uint32_t selector_slot_bytes(const char *name)
{
    enum { SLOTS = 4096 };
    const rp_selector_ops *ops = selector_builtin(name);
    struct reserve_group group = {0};
    reserve_group_begin(&group);
    void *state = ops ? ops->create(NULL, 0, SLOTS, 0, NULL) : NULL;
    reserve_group_end(SLOTS);
    if (state)
        ops->destroy(state);
    return group.slot_bytes;
}

rp_status selector_check_plain(const char *name, const rp_option *options, uint32_t n_options, uint32_t capacity,
                               rp_error *err)
{
    if (n_options > 0)
        return err_set(err, RP_INVALID_ARGUMENT, "selector %s has no option '%s': it takes none", name,
                       options[0].name);
    if (capacity == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "selector %s: a capacity of 0 can hold no item", name);
    return RP_OK;
}

rp_status selector_no_memory(const char *name, uint32_t capacity, rp_error *err)
{
    return err_set(err, RP_NO_MEMORY, "selector %s: no memory for %u items", name, capacity);
}
