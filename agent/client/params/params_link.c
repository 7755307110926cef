/* See params_link.h. */
#include "agent/client/params/params_link.h"

#include <stdlib.h>
#include <string.h>

#include "agent/client/params/params.h"
#include "proto/base/error.h"

/* ---- link ---- */

rp_status params_link_init(struct params_link *self, rp_client *client, const char *name, rp_error *err)
{
    RP_TRY(params_check_name(name, err));
    RP_TRY(conn_check_process(client_conn(client), err));
    *self = (struct params_link){.client = client, .name = strdup(name)};
    if (!self->name)
        return err_set(err, RP_NO_MEMORY, "no memory for the slot '%s'", name);
    pthread_mutex_init(&self->lock, NULL);
    conn_cond_init(&self->changed);
    return RP_OK;
}

void params_link_fini(struct params_link *self)
{
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->changed);
    free(self->name);
}

rp_status params_link_take_error(struct params_link *self, const char *what, rp_error *err)
{
    rp_status status = self->status;
    self->status = RP_OK;
    if (status != RP_OK)
        err_set(err, status, "%s '%s': %s", what, self->name, self->error.text);
    return status;
}

void params_link_keep_error(struct params_link *self, const struct params_lane *lane, const rp_error *error)
{
    char title[300];
    if (self->status != RP_OK)
        return;
    self->status = (rp_status)error->status;
    self->error = *error;
    if (client_shards(self->client) > 1)
        err_prefix(&self->error, "%s", conn_title(lane->conn, title, sizeof title));
}

/* ---- lanes ---- */

void params_lane_open(struct params_lane *self, struct params_link *link, uint32_t shard,
                      const struct conn_part_ops *ops)
{
    *self = (struct params_lane){.part.ops = ops, .link = link, .conn = client_shard(link->client, shard)};
    conn_attach(self->conn, &self->part);
}

void params_lane_close(struct params_lane *self)
{
    if (self->conn)
        conn_detach(self->conn, &self->part);
}

static void set_up(struct params_lane *self, bool up)
{
    pthread_mutex_lock(&self->link->lock);
    self->up = up;
    pthread_cond_broadcast(&self->link->changed);
    pthread_mutex_unlock(&self->link->lock);
}

bool params_lane_up(struct params_lane *self, const struct conn_hello *hello)
{
    bool other = self->instance != 0 && self->instance != hello->instance;
    self->instance = hello->instance;
    self->next_ns = 0;
    set_up(self, true);
    return other;
}

void params_lane_down(struct conn_part *part)
{
    set_up((struct params_lane *)part, false);
}

bool params_lane_is_free(const struct params_lane *self, int64_t now_ns, int64_t *wake_ns)
{
    *wake_ns = !self->up || self->in_flight ? INT64_MAX : self->next_ns;
    return now_ns >= *wake_ns;
}
