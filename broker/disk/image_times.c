/* The insert times of a table's items: moved to another clock, and never later than now. */
#include <stdlib.h>

#include "broker/disk/image_impl.h"

void image_table_shift(struct image_table *table, int64_t by)
{
    for (uint32_t i = 0; i < table->high; i++)
        table->items[i].insert_ns = image_add(table->items[i].insert_ns, table->items[i].n ? by : 0);
    if (table->last_ns != INT64_MIN)
        table->last_ns = image_add(table->last_ns, by);
}

static int by_time(const void *a, const void *b)
{
    const struct image_item *x = *(struct image_item *const *)a, *y = *(struct image_item *const *)b;
    return x->insert_ns < y->insert_ns ? -1 : x->insert_ns > y->insert_ns;
}

void image_table_clamp(struct image_table *table, int64_t now)
{
    if (table->last_ns <= now || table->size == 0)
        return;
    struct image_item **sorted = malloc((size_t)table->size * sizeof(*sorted));
    uint32_t n = 0;
    for (uint32_t i = 0; i < table->high && sorted; i++)
        if (table->items[i].n)
            sorted[n++] = &table->items[i];
    if (n)
        qsort(sorted, n, sizeof(*sorted), by_time);
    for (int64_t most = now; n > 0 && sorted[n - 1]->insert_ns > most; most = image_add(sorted[n]->insert_ns, -1))
        sorted[--n]->insert_ns = most;
    free(sorted);
    table->last_ns = now;
}
