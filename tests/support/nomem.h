/* A lack of memory on purpose. A test program that is linked with the allocator's functions wrapped (tests/CMakeLists.txt
 * does so for test_nomem_*.c) can let the n-th allocation of our own code fail: malloc and its relatives, mmap, messages of
 * libzmq. Allocations inside libraries are not touched. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum nomem_mode {
    NOMEM_ONCE,    /* the n-th allocation fails */
    NOMEM_FOR_EVER /* and all after it */
};

/* Counts from here on, in threads that are within nomem_enter. n 0: nothing fails, allocations are only counted. */
void nomem_arm(uint64_t n, enum nomem_mode mode);
/* Ends that. True: an allocation has failed. */
bool nomem_disarm(void);
bool nomem_has_failed(void);
/* Allocations since nomem_arm. */
uint64_t nomem_count(void);

/* This thread's allocations count until nomem_leave. */
void nomem_enter(void);
void nomem_leave(void);
/* All threads but the caller's count, too. */
void nomem_others(bool on);

/* Blocks that our code has and has not freed. */
uint64_t nomem_held(void);
/* Of the allocation that failed, or NULL: for a message. */
void nomem_print_failed(const char *what, uint64_t n);
/* Prints where the newest blocks that are still held were allocated. */
void nomem_print_held(uint32_t most);
/* Marks what is held now: nomem_print_held leaves it out. */
void nomem_mark(void);
