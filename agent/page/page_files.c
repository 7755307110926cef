/* The files of the page, as they lie in files/. The assembler puts them into the program. */
#include <string.h>

#include "agent/page/page.h"

#define EMBED(name, file)                                                                                              \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".global page_" #name "\n.hidden page_" #name "\npage_" #name ":\n"                                        \
            ".incbin \"" RP_PAGE_FILES "/" file "\"\n"                                                                 \
            ".global page_" #name "_end\n.hidden page_" #name "_end\npage_" #name "_end:\n.byte 0\n"                   \
            ".popsection\n");                                                                                          \
    extern const char page_##name[], page_##name##_end[];

EMBED(index, "index.html")
EMBED(style, "style.css")
EMBED(icon, "icon.svg")
EMBED(app, "app.js")
EMBED(util, "util.js")
EMBED(store, "store.js")
EMBED(chart, "chart.js")
EMBED(flow, "flow.js")
EMBED(latency, "latency.js")
EMBED(views, "views.js")
EMBED(items, "items.js")
EMBED(runs, "runs.js")

#define JS "text/javascript; charset=utf-8"
static const struct {
    const char *name, *type, *begin, *end;
} files[] = {
    {"", "text/html; charset=utf-8", page_index, page_index_end},
    {"index.html", "text/html; charset=utf-8", page_index, page_index_end},
    {"style.css", "text/css; charset=utf-8", page_style, page_style_end},
    {"icon.svg", "image/svg+xml", page_icon, page_icon_end},
    {"app.js", JS, page_app, page_app_end},
    {"util.js", JS, page_util, page_util_end},
    {"store.js", JS, page_store, page_store_end},
    {"chart.js", JS, page_chart, page_chart_end},
    {"flow.js", JS, page_flow, page_flow_end},
    {"latency.js", JS, page_latency, page_latency_end},
    {"views.js", JS, page_views, page_views_end},
    {"items.js", JS, page_items, page_items_end},
    {"runs.js", JS, page_runs, page_runs_end},
};

void page_get_file(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    (void)ctx;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (strcmp(request->path, files[i].name) != 0)
            continue;
        reply->type = files[i].type;
        reply->data = files[i].begin;
        reply->size = (size_t)(files[i].end - files[i].begin);
        return;
    }
    http_fail(reply, 404, "there is nothing here");
}
