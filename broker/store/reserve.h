/* Zeroed memory that is reserved at its full size once and committed page by page as it is touched, so that a slot array
 * never grows and never moves. */
#ifndef BROKER_RESERVE_H
#define BROKER_RESERVE_H

#include <stddef.h>
#include <stdint.h>

/* NULL if there is no address space left. Aligned to 4 KiB; from 2 MiB on the kernel is asked for huge pages. bytes > 0 */
void *reserve_map(size_t bytes);
/* The same number of bytes as for reserve_map. NULL is allowed. Much is given back by a thread of its own, so that the
 * caller does not wait. */
void reserve_unmap(void *memory, size_t bytes);

/* Arrays by slot that fill together: those of one table. */
#define RESERVE_GROUP_MAPS 16u
struct reserve_group {
    struct {
        char *memory;
        size_t bytes, warm; /* brought in up to here */
    } maps[RESERVE_GROUP_MAPS];
    uint32_t n;
};
/* What this thread maps until the end belongs to the group. */
void reserve_group_begin(struct reserve_group *group);
void reserve_group_end(void);
/* So many of `capacity` slots are in use, and more will be: brings in what those need (warm.h). */
void reserve_group_ahead(struct reserve_group *group, uint32_t used, uint32_t capacity);

#endif
