/* The state: what limits now, the broker's answers, and the run, as one JSON object. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/page/page_impl.h"
#include "proto/base/json.h"
#include "replay/admin.h"

struct look {
    struct page_run run;
    char *info_json, *why_json;
    rp_info *info;
    rp_waits *waits;
    char silence[300]; /* why the broker does not answer */
};

static void look_at_broker(rp_client *client, struct look *look)
{
    rp_error err = {0};
    if (!client) {
        snprintf(look->silence, sizeof look->silence, "nobody answers at its endpoint");
        return;
    }
    if (rp_admin_info(client, NULL, 0, PAGE_ASK_MS, &look->info, &err) != RP_OK) {
        snprintf(look->silence, sizeof look->silence, "%s", err.text);
        return;
    }
    rp_admin_why(client, PAGE_ASK_MS, &look->waits, NULL);
    rp_admin_info_json(client, NULL, 0, PAGE_ASK_MS, &look->info_json, NULL);
    rp_admin_why_json(client, PAGE_ASK_MS, &look->why_json, NULL);
}

static void look_fini(struct look *look)
{
    rp_string_free(&look->info_json);
    rp_string_free(&look->why_json);
    rp_info_free(&look->info);
    rp_waits_free(&look->waits);
    free(look->run.status);
}

/* A run has one verdict: its launcher's, which sees more than the broker says. Without one, or if the broker does not answer this page,
 * the page judges by itself. */
static void explain(const struct look *look, struct why *out)
{
    const struct why_run *run = look->run.has_facts ? &look->run.facts : NULL;
    if (look->info && why_read_status(look->run.status, out))
        return;
    why_explain(&(struct why_facts){look->info, look->waits, run, look->silence}, out);
}

static void put_verdict(struct json *out, const struct look *look)
{
    struct why why = look->run.why;
    const char *level = look->run.level;
    if (!level || (look->run.if_silent && look->info)) {
        explain(look, &why);
        level = why.bad ? "bad" : why.blocked != WHY_NOBODY ? "warn" : "good";
    }
    json_key(out, "verdict");
    json_open(out, '{');
    json_text(out, "text", why.text);
    json_text(out, "advice", why.advice);
    json_text(out, "level", level);
    json_text(out, "cause", why_cause_names[why.cause]);
    json_text(out, "blocked", why_side_names[why.blocked]);
    json_text(out, "table", why.table);
    json_close(out, '}');
}

/* The status and the broker's answers are JSON already. */
static char *put_together(const struct look *look)
{
    struct json out = {0};
    struct text all = {0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    json_open(&out, '{');
    json_real(&out, "unix_s", (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    json_key(&out, "run_alive");
    json_boolean(&out, look->run.alive);
    json_text(&out, "elsewhere", look->run.node);
    put_verdict(&out, look);
    char *head = json_take(&out);
    /* {"waits": [...]} becomes a member. */
    const char *waits = look->why_json ? strchr(look->why_json, '[') : NULL;
    const char *waits_end = look->why_json ? strrchr(look->why_json, ']') : NULL;
    text_add(&all, "%s, \"broker\": %s, \"waits\": %.*s, \"run\": %s", head ? head : "{\"unix_s\": 0",
             look->info_json ? look->info_json : "null", waits && waits_end ? (int)(waits_end - waits + 1) : 2,
             waits && waits_end ? waits : "[]", look->run.status ? look->run.status : "null");
    free(head);
    return all.data;
}

char *page_state(const struct page_host *host, rp_client *(*connect)(void *ctx), void *ctx)
{
    struct look look = {0};
    if (host->look)
        host->look(host->ctx, &look.run);
    if (!look.run.folder_only)
        look_at_broker(connect(ctx), &look);
    char *state = put_together(&look);
    look_fini(&look);
    return state;
}

static rp_client *nobody(void *ctx)
{
    (void)ctx;
    return NULL;
}

char *page_make_state(const struct page_host *host)
{
    return page_state(host, nobody, NULL);
}
