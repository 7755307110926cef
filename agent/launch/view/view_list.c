/* The processes of a run as a list, which keys sort and scroll. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/view/frame.h"
#include "agent/look/list.h"

static void cell_name(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%s", p->name);
}

static void cell_state(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%s", p->state);
}

static void cell_cores(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%.2f", p->cpu);
}

static void cell_memory(char *out, const void *row)
{
    const struct status_process *p = row;
    format_bytes(out, p->memory);
}

static void cell_restarts(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%u", p->restarts);
}

static void cell_host(char *out, const void *row)
{
    const struct status_process *p = row;
    snprintf(out, FORMAT_SIZE, "%.40s", p->host);
}

/* "actor-2" is before "actor-10". */
static int by_name(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->role != q->role ? (p->role > q->role) - (p->role < q->role) : strverscmp(p->name, q->name);
}

static int by_cores(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->cpu != q->cpu ? (p->cpu < q->cpu) - (p->cpu > q->cpu) : by_name(a, b);
}

static int by_memory(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->memory != q->memory ? (p->memory < q->memory) - (p->memory > q->memory) : by_name(a, b);
}

static int by_restarts(const void *a, const void *b)
{
    const struct status_process *p = a, *q = b;
    return p->restarts != q->restarts ? (p->restarts < q->restarts) - (p->restarts > q->restarts) : by_name(a, b);
}

static const struct list_column columns[] = {
    {"process", 14, true, cell_name, by_name},          {"state", 18, true, cell_state, NULL},
    {"cores", 6, false, cell_cores, by_cores},          {"memory", 9, false, cell_memory, by_memory},
    {"restarts", 9, false, cell_restarts, by_restarts}, {"host", 16, true, cell_host, NULL},
};

void view_add_list(struct frame *self, uint32_t most)
{
    const struct status *s = self->status;
    size_t size = s->n_processes * sizeof *s->processes;
    void *rows = s->processes && size ? malloc(size) : NULL;
    if (!rows)
        return;
    memcpy(rows, s->processes, size);
    const struct list list = {.columns = columns,
                              .n_columns = sizeof columns / sizeof *columns - (s->n_hosts > 1 ? 0 : 1),
                              .rows = rows,
                              .n_rows = s->n_processes,
                              .size = sizeof *s->processes};
    list_add(&self->sheet, self->look->chosen ? RANK_HOSTS : RANK_LIST, &list, self->look, most);
    free(rows);
}
