/* Memory in a file without a name, which another process of the same user on the same host may read.
 *
 * The file is sealed: it never shrinks, so that a reader cannot be hurt, whatever else its owner does. (The seal against writing would
 * also forbid to give pages back.) Its first 8 bytes are a random nonce: another host, or another process with the same number, has
 * another one. Who may open the file of a process is the kernel's decision (/proc/PID/fd). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What a reader has to know: it maps /proc/PID/fd/FD. */
struct memfile_name {
    uint32_t pid, fd;
    uint64_t size, nonce;
};

struct memfile {
    uint8_t *memory; /* mapped for writing; NULL: none */
    uint64_t size, nonce;
    int fd;
};

/* Makes a file of this size, a multiple of the page size, of which only the first page is there. False: the system does not allow it. */
bool memfile_make(struct memfile *self, uint64_t size);
void memfile_fini(struct memfile *self);
/* Makes the pages of a range, if they are not there. Where the system lacks memory for a page at its first use, the process would end
 * by SIGBUS. False: no memory. */
bool memfile_fill(const struct memfile *self, uint64_t at, uint64_t bytes);
struct memfile_name memfile_name(const struct memfile *self);

/* Maps a file read-only, for memfile_unmap. The name is not trusted: whatever it says, nothing is opened but a regular file, and
 * nothing mapped but memory that stays as large as it is. NULL: it is not what the name says, or cannot be had. */
const uint8_t *memfile_map(const struct memfile_name *name);
void memfile_unmap(const uint8_t *memory, uint64_t size);
