/* Prefaulting: a thread touches memory before the core thread needs it. Finding and clearing a huge page sometimes takes the
 * kernel milliseconds, in which the core thread would serve nobody. There is one such thread in the process, started when it
 * is first needed. */
#ifndef BROKER_PREFAULT_H
#define BROKER_PREFAULT_H

#include <stddef.h>
#include <stdint.h>

#define PREFAULT_REGION_BYTES (2u << 20)

/* Asks for pages to be prefaulted. Only a hint: a page that was not prefaulted comes when it is touched. Does not wait; the
 * memory may be unmapped at any time. */
void prefault_ahead(void *memory, size_t bytes);

/* Maps a region of one huge page, aligned to its size; the caller unmaps it. NULL: no address space. */
uint8_t *prefault_region_map(void);
/* Returns a region that is prefaulted already, and asks for the next ones. NULL: none is ready now. */
uint8_t *prefault_region(void);

#endif
