#include "broker/service/info_signature.h"

#include <string.h>

#include "broker/table/table.h"
#include "proto/base/dtype.h"

static void *arena_alloc(void *arena, size_t size)
{
    return arena_take(arena, 1, size);
}

static void arena_free(void *arena, void *memory)
{
    (void)arena, (void)memory; /* freed with the arena */
}

/* Adds a column for each of n fields; NULL: no memory. */
static Replay__Column *add_columns(struct arena *arena, Replay__TableInfo *info, size_t n)
{
    Replay__Column *columns = arena_take(arena, n, sizeof *columns);
    info->signature = arena_take(arena, n, sizeof(*info->signature));
    if (!columns || !info->signature)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        replay__column__init(&columns[i]);
        info->signature[i] = &columns[i];
    }
    info->n_signature = n;
    return columns;
}

static void prescribed(struct arena *arena, const struct signature *signature, Replay__TableInfo *info)
{
    Replay__Column *columns = add_columns(arena, info, signature->n);
    for (uint32_t i = 0; columns && i < signature->n; i++) {
        columns[i].name = arena_borrow(signature->fields[i].name);
        columns[i].dtype = arena_borrow(dtype_name(signature->fields[i].dtype));
        columns[i].shape = signature->fields[i].shape;
        columns[i].n_shape = signature->fields[i].rank;
    }
    info->prescribed = true;
}

/* A field has the shape of its column, with the number of steps before it unless it is squeezed. */
static void from_layout(struct arena *arena, const struct layout *layout, Replay__TableInfo *info)
{
    ProtobufCAllocator allocator = {arena_alloc, arena_free, arena};
    size_t size;
    const uint8_t *message = layout_message(layout, &size);
    const Replay__Layout *wire = replay__layout__unpack(&allocator, size, message);
    Replay__Column *columns = wire ? add_columns(arena, info, wire->n_fields) : NULL;
    for (size_t i = 0; columns && i < wire->n_fields; i++) {
        const Replay__Field *field = wire->fields[i];
        const Replay__Column *column = wire->columns[field->column];
        size_t steps = field->squeeze ? 0 : 1;
        columns[i].name = field->name;
        columns[i].dtype = column->dtype;
        columns[i].shape = arena_take(arena, column->n_shape + steps, sizeof *columns[i].shape);
        if (!columns[i].shape)
            return;
        if (steps)
            columns[i].shape[0] = field->count;
        if (column->n_shape)
            memcpy(columns[i].shape + steps, column->shape, column->n_shape * sizeof *column->shape);
        columns[i].n_shape = column->n_shape + steps;
    }
}

void info_signature(struct arena *arena, const struct table *table, Replay__TableInfo *info)
{
    if (table->signature.n)
        prescribed(arena, &table->signature, info);
    else if (table->newest_layout != NO_LAYOUT)
        from_layout(arena, layouts_at(table->layouts, table->newest_layout), info);
}
