/* A list in a view: rows with columns, sorted and scrolled by keys. */
#ifndef AGENT_LOOK_LIST_H
#define AGENT_LOOK_LIST_H

#include "agent/look/look.h"

#define LIST_COLUMNS 8u

struct list_column {
    const char *title;
    uint32_t width; /* columns */
    bool left;      /* text: aligned to the left */
    /* Puts the cell into out (FORMAT_SIZE bytes). */
    void (*cell)(char *out, const void *row);
    /* Compares rows for an order by this column, qsort's way; NULL: there is no such order. */
    int (*compare)(const void *a, const void *b);
};

struct list {
    const struct list_column *columns; /* those that do not fit are left out, from the last on */
    uint32_t n_columns;
    void *rows; /* sorted by list_add */
    uint32_t n_rows;
    size_t size; /* of a row */
};

/* Adds the list in at most `most` lines: its titles, and as many rows as fit from look->first on. The title of the column that
 * gives the order is marked. Nothing is added without room for a row. */
void list_add(struct sheet *sheet, uint32_t rank, const struct list *list, struct look *look, uint32_t most);

#endif
