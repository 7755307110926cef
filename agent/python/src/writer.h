/* Writers and selections as writer.c and rows.c know them. */
#pragma once

#include "agent/python/src/core.h"

typedef struct writer_object {
    struct guarded guarded;
    struct conn *conn;
    rp_writer *writer;
    struct nest *nest;
    struct column *columns;
    struct cell *cells;
    PyObject **leaves;
    const void **values;
    uint32_t n_columns;
    uint64_t episode_steps; /* in the present episode */
    uint64_t opened;        /* a number of its own for each writer that was opened; 0: not open */
    uint64_t twin;          /* `opened` of a writer with the same columns; 0: none known */
    char *last;             /* the newest observation of a stream of transitions; see rows.c */
    uint64_t group;         /* as set; 0: none */
} writer_object;

typedef struct selection_object {
    PyObject_HEAD rp_slice *slices;
    uint32_t n;
} selection_object;

extern PyTypeObject *writer_type, *selection_type;
