/* What the launcher asks of a host beside processes: files, the rate of the network, and whether an endpoint is reached. */
#include "agent/launch/host/host_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

static rp_status need_ready(const struct host *self, rp_error *err)
{
    return self->state == HOST_READY
               ? RP_OK
               : err_set(err, RP_UNAVAILABLE, "host %s is %s", self->name, host_state_names[self->state]);
}

rp_status host_send_file(struct host *self, const char *path, const char *name, rp_error *err)
{
    RP_TRY(need_ready(self, err));
    return host_out_file(self, path, name, err);
}

rp_status host_measure_begin(struct host *self, const char *address, int64_t ns, rp_error *err)
{
    RP_TRY(need_ready(self, err));
    struct json_object *line = host_line_new("measure");
    host_line_add_text(line, "address", address);
    host_line_add_number(line, "ms", ns / NS_PER_MS);
    self->measure = (struct host_answer){.waiting = true};
    return host_out_line(self, line) ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for a measurement");
}

double host_measure_result(struct host *self, const char **why)
{
    *why = self->measure.text;
    return !self->measure.done ? 0.0 : self->measure.ok && self->measure.rate > 0 ? self->measure.rate : -1.0;
}

rp_status host_reach_begin(struct host *self, const char *endpoint, rp_error *err)
{
    RP_TRY(need_ready(self, err));
    struct json_object *line = host_line_new("reach");
    host_line_add_text(line, "endpoint", endpoint);
    self->reach = (struct host_answer){.waiting = true};
    return host_out_line(self, line) ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for a question");
}

bool host_reach_result(struct host *self, bool *done, const char **why)
{
    *done = self->reach.done;
    *why = self->reach.text;
    return self->reach.ok;
}
