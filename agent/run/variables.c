#include "agent/run/variables.h"

#include <stdlib.h>
#include <string.h>

#include "agent/run/stop.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

void variables_init(struct variables *self, rp_client *client, struct agent *agent)
{
    *self = (struct variables){.client = client, .agent = agent};
}

void variables_fini(struct variables *self)
{
    rp_publisher_destroy(&self->publisher, 0, NULL);
    rp_subscriber_destroy(&self->subscriber);
    free(self->block);
    self->block = NULL;
}

rp_status variables_subscribe(struct variables *self, rp_error *err)
{
    rp_error why = {0};
    self->subscriber = rp_subscriber_new(self->client, VARIABLES_SLOT, self->version, &why);
    return self->subscriber ? RP_OK : err_set(err, (rp_status)why.status, "%s", why.text);
}

/* The policy's tensors, and one more: the learner's step. */
static uint32_t list_tensors(struct agent *agent, uint64_t *steps, struct tensor out[AGENT_MAX_TENSORS + 1])
{
    memcpy(out, agent->tensors, agent->n_policy * sizeof out[0]);
    out[agent->n_policy] = tensor_vector("steps", RP_DTYPE_UINT64, steps, 1);
    return agent->n_policy + 1;
}

rp_status variables_pull(struct variables *self, int64_t timeout_ms, bool *fresh, rp_error *err)
{
    rp_params *params;
    if (fresh)
        *fresh = false;
    rp_status status = self->subscriber
                           ? rp_subscriber_take(self->subscriber, timeout_ms, &params, err)
                           : rp_params_get(self->client, VARIABLES_SLOT, self->version, timeout_ms, &params, err);
    if (status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE)
        return RP_OK;
    if (status != RP_OK)
        return status;
    const rp_param *slot = rp_params_slot(params);
    if (slot && slot->data) {
        struct tensor tensors[AGENT_MAX_TENSORS + 1];
        uint32_t n = list_tensors(self->agent, &self->steps, tensors);
        status = weights_decode(slot->data, slot->bytes, tensors, n, err);
        if (status == RP_OK) {
            self->version = slot->version;
            if (fresh)
                *fresh = true;
        } else {
            err_prefix(err, "parameter slot '" VARIABLES_SLOT "'");
        }
    }
    rp_params_release(&params);
    return status;
}

uint64_t variables_stamp(const struct variables *self, const struct run_config *config)
{
    return run_config_bounds_lag(config) ? self->version : self->steps;
}

rp_status variables_wait(struct variables *self, const atomic_bool *stop, rp_error *err)
{
    bool fresh = self->version != 0;
    for (uint32_t tries = 0; !fresh; tries++) {
        if (is_stopped(stop))
            return err_set(err, RP_CANCELLED, "stopped while waiting for a learner's first parameters");
        if (tries == 10)
            log_line(LEVEL_WARN, "A0101", "still waiting for a learner's first parameters", "slot=" VARIABLES_SLOT);
        RP_TRY(variables_pull(self, 500, &fresh, err));
    }
    return RP_OK;
}

rp_status variables_load(struct variables *self, const char *path, rp_error *err)
{
    struct tensor tensors[AGENT_MAX_TENSORS + 1];
    uint32_t n = list_tensors(self->agent, &self->steps, tensors);
    return weights_read_file(path, tensors, n, err);
}

rp_status variables_offer(struct variables *self, rp_error *err)
{
    struct tensor tensors[AGENT_MAX_TENSORS + 1];
    self->steps = self->agent->steps;
    uint32_t n = list_tensors(self->agent, &self->steps, tensors);
    size_t size = weights_size(tensors, n);
    if (size != self->size)
        self->block = need_resize(self->block, size, 1);
    self->size = size;
    weights_encode(tensors, n, self->block);
    rp_error why = {0};
    if (!self->publisher && !(self->publisher = rp_publisher_new(self->client, VARIABLES_SLOT, &why)))
        return err_set(err, (rp_status)why.status, "%s", why.text);
    return rp_publisher_put(self->publisher, self->block, self->size, err);
}

rp_status variables_publish(struct variables *self, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(variables_offer(self, err));
    return rp_publisher_flush(self->publisher, timeout_ms, &self->version, err);
}
