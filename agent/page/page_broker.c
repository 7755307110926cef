/* What the broker says: the state of all, writers with their sessions, items. */
#include <stdlib.h>
#include <string.h>

#include "agent/page/page_impl.h"
#include "replay/admin.h"

#define ITEMS_MOST 200u
#define VALUES_MOST 262144u /* of each field of an item: an image of 512 x 512 */

void page_get_state(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    struct page *self = ctx;
    char *state = page_watch_state(self);
    if (!state) {
        http_fail(reply, 503, "there is no answer yet");
        return;
    }
    text_add(&reply->text, "%s, \"can\": {\"change\": %s, \"stop\": \"%s\", \"runs\": %s}}\n", state,
             request->trusted ? "true" : "false", request->trusted && self->host.stop ? self->host.what : "",
             self->host.look ? "true" : "false");
    free(state);
}

/* A question to the broker whose answer is JSON. */
struct question {
    const struct http_request *request;
    struct http_reply *reply;
    rp_status (*ask)(rp_client *client, const struct http_request *request, char **json, rp_error *err);
};

static uint32_t http_status(rp_status status)
{
    switch (status) {
    case RP_NOT_FOUND:
        return 404;
    case RP_INVALID_ARGUMENT:
    case RP_FAILED_PRECONDITION:
        return 400;
    case RP_PERMISSION_DENIED:
        return 403;
    default:
        return 503;
    }
}

static void put_question(rp_client *client, void *ctx)
{
    const struct question *self = ctx;
    char *json = NULL;
    rp_error err = {0};
    rp_status status = client ? self->ask(client, self->request, &json, &err) : RP_UNAVAILABLE;
    if (status == RP_OK)
        text_add(&self->reply->text, "%s\n", json);
    else
        http_fail(self->reply, http_status(status), "%s", client ? err.text : "the broker does not answer");
    rp_string_free(&json);
}

static void question(void *ctx, const struct http_request *request, struct http_reply *reply,
                     rp_status (*ask)(rp_client *, const struct http_request *, char **, rp_error *))
{
    struct question self = {request, reply, ask};
    page_with_client(ctx, put_question, &self);
}

static rp_status ask_sessions(rp_client *client, const struct http_request *request, char **json, rp_error *err)
{
    (void)request;
    return rp_admin_info_json(client, NULL, 1, PAGE_ASK_MS, json, err);
}

/* A number of the query; 0: there is none. */
static uint64_t number_of(const struct http_request *request, const char *name)
{
    const char *text = http_query(request, name);
    return text ? strtoull(text, NULL, 10) : 0;
}

static const char *text_of(const struct http_request *request, const char *name)
{
    const char *text = http_query(request, name);
    return text ? text : "";
}

static rp_status ask_items(rp_client *client, const struct http_request *request, char **json, rp_error *err)
{
    uint64_t count = number_of(request, "count");
    return rp_admin_list_json(client, text_of(request, "table"), number_of(request, "cursor"),
                              (uint32_t)(count > 0 && count < ITEMS_MOST ? count : ITEMS_MOST), PAGE_ASK_MS, json, err);
}

static rp_status ask_item(rp_client *client, const struct http_request *request, char **json, rp_error *err)
{
    uint64_t key = number_of(request, "key");
    return rp_admin_fetch_json(client, text_of(request, "table"), &key, 1, VALUES_MOST, PAGE_ASK_MS, json, err);
}

void page_get_writers(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    question(ctx, request, reply, ask_sessions);
}

void page_get_items(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    question(ctx, request, reply, ask_items);
}

void page_get_item(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    question(ctx, request, reply, ask_item);
}
