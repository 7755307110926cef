/* See params_link.h. */
#include "agent/client/params/params_link.h"

#include <stdlib.h>
#include <string.h>

#include "agent/client/params/params.h"
#include "proto/base/error.h"

rp_status params_link_init(struct params_link *self, rp_client *client, const char *name,
                           const struct conn_part_ops *ops, rp_error *err)
{
    RP_TRY(params_check_name(name, err));
    RP_TRY(conn_check_process(client_conn(client), err));
    *self = (struct params_link){.part.ops = ops, .conn = client_conn(client), .name = strdup(name)};
    if (!self->name)
        return err_set(err, RP_NO_MEMORY, "no memory for the slot '%s'", name);
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->changed);
    return RP_OK;
}

void params_link_fini(struct params_link *self)
{
    conn_detach(self->conn, &self->part);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->changed);
    free(self->name);
}

void params_link_up(struct conn_part *part, const struct conn_hello *hello)
{
    struct params_link *self = (struct params_link *)part;
    (void)hello;
    self->up = true;
    self->next_ns = 0;
}

void params_link_down(struct conn_part *part)
{
    ((struct params_link *)part)->up = false;
}

bool params_link_is_free(const struct params_link *self, int64_t now_ns, int64_t *wake_ns)
{
    *wake_ns = !self->up || self->in_flight ? INT64_MAX : self->next_ns;
    return now_ns >= *wake_ns;
}

rp_status params_link_take_error(struct params_link *self, const char *what, rp_error *err)
{
    rp_status status = self->status;
    self->status = RP_OK;
    if (status != RP_OK)
        err_set(err, status, "%s '%s': %s", what, self->name, self->error.text);
    return status;
}
