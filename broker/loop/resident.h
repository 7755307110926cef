/* The memory that the process has, against the memory that the broker counts. The rest is with libzmq (messages that have not
 * arrived whole, replies that are not read) and with the allocator: memory_limit does not bound it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct resident {
    bool on;        /* the process is the broker's alone */
    uint64_t start; /* bytes that it had beyond the count at first; 0: not known yet */
    uint64_t told;  /* bytes beyond the count that the log knows of; 0: none */
};

/* Once a second: warns when the process has much more than is counted, and again when that has doubled. unfinished: bytes of
 * messages that have not arrived whole, as far as they are known. */
void resident_check(struct resident *self, uint64_t counted, uint64_t unfinished);
/* The same with the memory of the process given. True: it was logged. */
bool resident_judge(struct resident *self, uint64_t resident, uint64_t counted, uint64_t unfinished);
