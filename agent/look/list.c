#include "agent/look/list.h"

#include <stdio.h>
#include <stdlib.h>

#define GAP 2u
#define LEAST 2u /* titles and a row */

/* The column that gives the order: the sort-th of those that can. */
static uint32_t order_of(const struct list *self, uint32_t sort)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_columns; i++)
        n += self->columns[i].compare != NULL;
    uint32_t left = n ? sort % n : 0;
    for (uint32_t i = 0; i < self->n_columns; i++)
        if (self->columns[i].compare && left-- == 0)
            return i;
    return 0;
}

static uint32_t columns_that_fit(const struct list *self, uint32_t wide)
{
    uint32_t n = 0, used = 1;
    for (; n < self->n_columns; n++) {
        used += (n ? GAP : 0) + self->columns[n].width;
        if (used > wide)
            break;
    }
    return n ? n : 1;
}

static void put_cell(struct line *line, const struct list_column *column, uint32_t end, bool last, enum tint tint,
                     const char *text)
{
    uint32_t limit = line->limit, own = line_width(text);
    if (!column->left && line->width + own < end)
        line_put(line, TINT_NONE, "%*s", (int)(end - own - line->width), "");
    line->limit = limit && limit < end ? limit : end;
    line_put(line, tint, "%s", text);
    line->limit = limit;
    if (line->width < end && !last)
        line_to(line, end);
}

static void put_row(struct sheet *sheet, uint32_t rank, const struct list *self, uint32_t n, const void *row,
                    uint32_t order)
{
    struct line *line = sheet_line(sheet, rank);
    if (!line)
        return;
    line_to(line, 1);
    for (uint32_t i = 0, end = 1; i < n; i++) {
        const struct list_column *column = &self->columns[i];
        format_buffer cell = "";
        if (row)
            column->cell(cell, row);
        else
            snprintf(cell, sizeof cell, i == order ? "%s%s" : "%s", column->title, line->utf8 ? "▾" : "*");
        if (i)
            line_put(line, TINT_NONE, "%*s", (int)GAP, "");
        end += (i ? GAP : 0) + column->width;
        put_cell(line, column, end, i + 1 == n, row ? TINT_NONE : i == order ? TINT_BOLD : TINT_DIM, cell);
    }
}

void list_add(struct sheet *sheet, uint32_t rank, const struct list *self, struct look *look, uint32_t most)
{
    look->n_rows = self->n_rows;
    look->page = 0;
    if (most < LEAST || self->n_rows == 0)
        return;
    uint32_t order = order_of(self, look->sort), n = columns_that_fit(self, sheet_columns(sheet));
    qsort(self->rows, self->n_rows, self->size, self->columns[order].compare);
    look->page = self->n_rows < most - 1 ? self->n_rows : most - 1;
    if (look->first > self->n_rows - look->page)
        look->first = self->n_rows - look->page;
    put_row(sheet, rank, self, n, NULL, order);
    for (uint32_t i = look->first; i < look->first + look->page; i++)
        put_row(sheet, rank, self, n, (const char *)self->rows + i * self->size, order);
}
