/* Memory that will soon be touched for the first time, brought in ahead by a thread of its own: finding and clearing a
 * huge page takes the kernel milliseconds now and then, and the core thread has other things to do. One thread for the
 * process, started when it is first needed. */
#ifndef BROKER_WARM_H
#define BROKER_WARM_H

#include <stddef.h>
#include <stdint.h>

#define WARM_REGION_BYTES (2u << 20)

/* Only a hint: what was not brought in comes when it is touched, as ever. Does not wait; the memory may be unmapped at
 * any time. */
void warm_ahead(void *memory, size_t bytes);

/* A region of its own huge page, aligned to its size, to be unmapped by the caller. NULL: no address space. */
uint8_t *warm_region_map(void);
/* The same, brought in already; and the next are prepared. NULL: none is ready now. */
uint8_t *warm_region(void);

#endif
