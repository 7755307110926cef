/* Zeroed memory that is reserved at its full size once and committed page by page when it is touched, so that a slot array
 * never grows and never moves. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A region is one huge page, aligned to its size; the caller unmaps it. */
#define RESERVE_REGION_BYTES (2u << 20)
/* NULL: no address space. */
uint8_t *reserve_region_map(void);
/* Returns a region whose memory another thread has touched already, and asks for the next ones. NULL: none is ready now. */
uint8_t *reserve_region(void);

/* Ends the process with a sentence if there is no address space left: the configuration asks for tables that this process may not
 * have. Aligned to 4 KiB; from 2 MiB on the kernel is asked for huge pages. bytes > 0 */
void *reserve_map(size_t bytes) __attribute__((returns_nonnull));
/* True if there is address space for so much more now. */
bool reserve_has_room(size_t bytes);
/* Takes the same number of bytes as reserve_map; NULL is allowed. A thread of its own unmaps large memory, so that the caller
 * does not wait. */
void reserve_unmap(void *memory, size_t bytes);
/* The same for memory that is used all over, in random order: from 2 MiB on, all of it is huge pages. */
void *reserve_map_dense(size_t bytes);
void reserve_unmap_dense(void *memory, size_t bytes);

/* Arrays by slot that fill together: the arrays of one table. */
#define RESERVE_GROUP_MAPS 16u
struct reserve_group {
    struct {
        char *memory;
        size_t bytes, prefaulted; /* bytes from the start */
        bool whole;               /* the small pages at the start were to become a huge page */
    } maps[RESERVE_GROUP_MAPS];
    uint32_t n;
    bool sparing; /* small pages, and none ahead: a huge page of each array would be much of the memory that there is */
    size_t bytes; /* of all arrays */
    uint32_t slot_bytes; /* that a used slot takes in all arrays */
};
/* Memory that this thread maps between begin and end belongs to the group. A group that was ended may be begun again. */
void reserve_group_begin(struct reserve_group *group);
void reserve_group_end(uint32_t capacity);
/* `used` of `capacity` slots are in use, and more will be: prefaults the pages of the next slots. */
void reserve_group_ahead(struct reserve_group *group, uint32_t used, uint32_t capacity);
