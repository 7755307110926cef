/* Zeroed memory that is reserved at its full size once and committed page by page as it is touched, so that a slot array
 * never grows and never moves. Released at once. */
#ifndef BROKER_RESERVE_H
#define BROKER_RESERVE_H

#include <stddef.h>

/* NULL if there is no address space left. Aligned to a page; from 2 MiB on to a huge page, which the kernel is then
 * asked to use. bytes > 0. */
void *reserve_map(size_t bytes);
/* The same number of bytes as for reserve_map. NULL is allowed. */
void reserve_unmap(void *memory, size_t bytes);

#endif
