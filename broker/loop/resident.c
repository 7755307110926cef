#include "broker/loop/resident.h"

#include <stdio.h>
#include <unistd.h>

#include "proto/base/io.h"
#include "proto/base/log.h"

/* What a healthy broker may have beyond its count: a part of it, for the allocator, and its threads and buffers. */
#define MARGIN_PART 4
#define MARGIN_BYTES (UINT64_C(256) << 20)

/* Returns the memory of the process without files that it has mapped; 0: it cannot be read. */
static uint64_t read_resident(void)
{
    unsigned long long resident = 0, shared = 0;
    char text[128];
    bool ok = io_text("/proc/self/statm", text, sizeof text) &&
              sscanf(text, "%*u %llu %llu", &resident, &shared) == 2 && resident > shared;
    return ok ? (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

bool resident_judge(struct resident *self, uint64_t resident, uint64_t counted, uint64_t unfinished)
{
    if (self->start == 0)
        self->start = resident > counted ? resident - counted : 1;
    uint64_t margin = counted / MARGIN_PART + MARGIN_BYTES, own = self->start + counted;
    uint64_t beyond = resident > own ? resident - own : 0;
    if (beyond < margin / 2)
        self->told = 0;
    if (beyond <= margin || beyond < 2 * self->told)
        return false;
    self->told = beyond;
    log_line(
        LEVEL_WARN, "B0009", "the process has more memory than the broker counts",
        "resident_bytes=%llu counted_bytes=%llu unfinished_bytes=%llu why=\"messages that have not arrived whole, "
        "replies that are not read, or memory that was in use and is kept for later; if it grows, somebody may hold "
        "it: docs/OPERATE.md\"",
        (unsigned long long)resident, (unsigned long long)counted, (unsigned long long)unfinished);
    return true;
}

void resident_check(struct resident *self, uint64_t counted, uint64_t unfinished)
{
    if (self->on)
        resident_judge(self, read_resident(), counted, unfinished);
}
