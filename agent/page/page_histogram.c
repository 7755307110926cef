/* How priorities and ages of a table's items are spread, from some thousand items that lie evenly over the table. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "agent/page/page_impl.h"
#include "proto/base/json.h"
#include "replay/admin.h"

#define PARTS 64u /* of the table, from each of which a few items are taken: neighbours are of one age */
#define PART_ITEMS 16u
#define ITEMS_MOST (PARTS * PART_ITEMS)
#define BINS 20u

struct sample {
    const char *table;
    uint64_t size; /* of the table, about */
    double priorities[ITEMS_MOST], ages[ITEMS_MOST];
    uint32_t n;
    rp_status status;
    rp_error err;
};

static void take_part(rp_client *client, struct sample *self, uint64_t cursor)
{
    rp_item_info items[PART_ITEMS];
    uint32_t n = PART_ITEMS;
    self->status = rp_admin_list(client, self->table, &cursor, items, &n, PAGE_ASK_MS, &self->err);
    if (self->status == RP_UNAVAILABLE && client_shards(client) > 1)
        self->status = RP_OK; /* the items of the others are a sample, too */
    for (uint32_t i = 0; self->status == RP_OK && i < n && self->n < ITEMS_MOST; i++) {
        self->priorities[self->n] = items[i].priority;
        self->ages[self->n++] = (double)items[i].age_ns * 1e-9;
    }
}

static void take_sample(rp_client *client, void *ctx)
{
    struct sample *self = ctx;
    self->status = client ? RP_OK : RP_UNAVAILABLE;
    uint64_t shards = client ? client_shards(client) : 1, size = self->size / shards; /* about the same at all shards */
    uint64_t parts = self->size > ITEMS_MOST ? PARTS / shards : (size + PART_ITEMS - 1) / PART_ITEMS;
    parts = parts || shards == 1 ? parts : 1;
    for (uint64_t i = 0; self->status == RP_OK && i < parts * shards; i++)
        take_part(client, self, (i % shards) << RP_CURSOR_BITS | i / shards * size / parts);
}

/* Bins of equal width; of equal ratio where values differ by more than a factor of 1000. */
static void put_bins(struct json *out, const char *name, const double *values, uint32_t n)
{
    double low = INFINITY, high = -INFINITY;
    uint64_t counts[BINS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        low = fmin(low, values[i]);
        high = fmax(high, values[i]);
    }
    bool logs = low > 0 && high > 1000 * low;
    double from = logs ? log(low) : low, width = ((logs ? log(high) : high) - from) / BINS;
    for (uint32_t i = 0; i < n; i++) {
        double at = width > 0 ? ((logs ? log(values[i]) : values[i]) - from) / width : 0;
        counts[at < 0 ? 0 : at >= BINS ? BINS - 1 : (uint32_t)at]++;
    }
    json_key(out, name);
    json_open(out, '[');
    for (uint32_t i = 0; n > 0 && i < (width > 0 ? BINS : 1); i++) {
        double start = from + width * i;
        json_open(out, '{');
        json_real(out, "from", logs ? exp(start) : start);
        json_count(out, "count", counts[i]);
        json_close(out, '}');
    }
    json_close(out, ']');
}

void page_get_histogram(void *ctx, const struct http_request *request, struct http_reply *reply)
{
    const char *table = http_query(request, "table"), *size = http_query(request, "size");
    struct sample *sample = calloc(1, sizeof *sample);
    if (!sample || !table) {
        http_fail(reply, sample ? 400 : 503, sample ? "which table?" : "no memory");
        free(sample);
        return;
    }
    sample->table = table;
    sample->size = size ? strtoull(size, NULL, 10) : ITEMS_MOST;
    page_with_client(ctx, take_sample, sample);
    if (sample->status == RP_OK) {
        struct json out = {0};
        json_open(&out, '{');
        json_count(&out, "items", sample->n);
        put_bins(&out, "priorities", sample->priorities, sample->n);
        put_bins(&out, "ages", sample->ages, sample->n);
        json_close(&out, '}');
        char *text = json_take(&out);
        text_add(&reply->text, "%s\n", text ? text : "{}");
        free(text);
    } else {
        http_fail(reply, sample->status == RP_NOT_FOUND ? 404 : 503, "%s",
                  sample->status == RP_UNAVAILABLE ? "the broker does not answer" : sample->err.text);
    }
    free(sample);
}
