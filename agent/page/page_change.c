/* Changes: a checkpoint, a reset, another limiter, the end of the run or of the broker. The server lets in only requests with the
 * token. */
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/page/page_impl.h"
#include "proto/base/json.h"
#include "replay/admin.h"

#define CHANGE_MS 5000

struct change {
    struct json_object *wish;
    const char *table;
    char done[200];
    rp_status status;
    rp_error err;
};

static double number_of(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;
    bool is = json_object_object_get_ex(object, name, &value) &&
              (json_object_is_type(value, json_type_double) || json_object_is_type(value, json_type_int));
    return is ? json_object_get_double(value) : NAN;
}

static const char *text_of(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;
    bool is = json_object_object_get_ex(object, name, &value) && json_object_is_type(value, json_type_string);
    return is ? json_object_get_string(value) : "";
}

static void make_checkpoint(rp_client *client, struct change *self)
{
    rp_checkpoint_info info = {.struct_size = sizeof info};
    self->status = rp_admin_checkpoint(client, CHANGE_MS, &info, &self->err);
    if (self->status == RP_DEADLINE_EXCEEDED) { /* the broker goes on with it, and a browser does not wait for ever */
        self->status = RP_OK;
        snprintf(self->done, sizeof self->done, "The checkpoint takes longer than %d s: the broker goes on with it.",
                 CHANGE_MS / 1000);
        return;
    }
    snprintf(self->done, sizeof self->done, "Checkpoint %llu is on disk: %llu items.", (unsigned long long)info.number,
             (unsigned long long)info.items);
}

static void reset(rp_client *client, struct change *self)
{
    uint64_t removed = 0;
    self->status = rp_admin_reset(client, self->table, CHANGE_MS, &removed, &self->err);
    snprintf(self->done, sizeof self->done, "%llu items of '%.100s' are gone.", (unsigned long long)removed,
             self->table);
}

static void set_limiter(rp_client *client, struct change *self)
{
    static const struct {
        const char *name;
        uint32_t field;
        size_t offset;
    } rows[] = {{"samples_per_insert", RP_LIMITER_SAMPLES_PER_INSERT, offsetof(rp_limiter_change, samples_per_insert)},
                {"min_size", RP_LIMITER_MIN_SIZE, offsetof(rp_limiter_change, min_size)},
                {"error_buffer", RP_LIMITER_ERROR_BUFFER, offsetof(rp_limiter_change, error_buffer)}};
    rp_limiter_change change = {.struct_size = sizeof change};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double value = number_of(self->wish, rows[i].name);
        if (!isfinite(value))
            continue;
        change.set |= rows[i].field;
        memcpy((char *)&change + rows[i].offset, &value, sizeof value);
    }
    self->status = rp_admin_set_limiter(client, self->table, &change, CHANGE_MS, &self->err);
    snprintf(self->done, sizeof self->done, "The limiter of '%.100s' is changed.", self->table);
}

static const struct {
    const char *name;
    void (*act)(rp_client *client, struct change *self);
} actions[] = {{"checkpoint", make_checkpoint}, {"reset", reset}, {"limiter", set_limiter}};

static void act(rp_client *client, void *ctx)
{
    struct change *self = ctx;
    const char *wanted = text_of(self->wish, "action");
    self->status = RP_INVALID_ARGUMENT;
    snprintf(self->err.text, sizeof self->err.text, "there is no action '%.40s'", wanted);
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(actions[i].name, wanted) != 0)
            continue;
        self->err = (rp_error){0};
        if (client)
            actions[i].act(client, self);
        else
            snprintf(self->err.text, sizeof self->err.text, "the broker does not answer");
        self->status = client ? self->status : RP_UNAVAILABLE;
    }
}

static void answer(struct http_reply *reply, const char *text)
{
    struct json out = {0};
    json_open(&out, '{');
    json_text(&out, "text", text);
    json_close(&out, '}');
    char *whole = json_take(&out);
    text_add(&reply->text, "%s\n", whole ? whole : "{}");
    free(whole);
}

static void end(struct page *page, struct http_reply *reply)
{
    const struct page_host *host = &page->host;
    char text[64];
    if (!host->stop) {
        http_fail(reply, 400, "this page cannot end anything: use replay-launch stop, or a signal to the broker");
        return;
    }
    bool already = atomic_flag_test_and_set(&page->stopping); /* a second signal would kill it */
    snprintf(text, sizeof text, "The %s ends%s.", host->what, already ? " already" : "");
    if (!already)
        host->stop(host->stop_ctx);
    answer(reply, text);
}

void page_do(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct change change = {.wish = json_tokener_parse(request->body)};
    if (!json_object_is_type(change.wish, json_type_object)) {
        http_fail(reply, 400, "the request is no JSON object");
    } else if (strcmp(text_of(change.wish, "action"), "stop") == 0) {
        end(ctx, reply);
    } else {
        change.table = text_of(change.wish, "table");
        page_with_client(ctx, act, &change);
        if (change.status == RP_OK)
            answer(reply, change.done);
        else
            http_fail(reply, change.status == RP_UNAVAILABLE ? 503 : 400, "%s", change.err.text);
    }
    json_object_put(change.wish);
}
