#include "broker/reserve.h"

#include <stdint.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

static void *map_pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static size_t round_up(size_t bytes)
{
    return (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
}

/* Maps one huge page more than needed and gives back what lies before and after the aligned part. */
static void *map_huge(size_t bytes)
{
    size_t whole = round_up(bytes);
    char *memory = map_pages(whole + HUGE_BYTES);
    if (!memory)
        return NULL;
    size_t before = (size_t)(-(uintptr_t)memory & (HUGE_BYTES - 1));
    if (before)
        munmap(memory, before);
    if (HUGE_BYTES - before)
        munmap(memory + before + whole, HUGE_BYTES - before);
    madvise(memory + before, whole, MADV_HUGEPAGE);
    return memory + before;
}

void *reserve_map(size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * HUGE_BYTES)
        return NULL;
    return bytes < HUGE_BYTES ? map_pages(bytes) : map_huge(bytes);
}

void reserve_unmap(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes < HUGE_BYTES ? bytes : round_up(bytes));
}
