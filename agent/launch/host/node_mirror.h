/* Files of a node agent's work folder go home, in passes over the folder: each finds the files that have changed, and sends the new
 * bytes of a file that has grown, and the whole of a file that is new or was replaced. Names that begin with a dot or end in ".tmp" are not
 * sent, nor are the files that only the launcher writes. */
#ifndef AGENT_LAUNCH_NODE_MIRROR_H
#define AGENT_LAUNCH_NODE_MIRROR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "agent/launch/host/host_line.h"

struct node_mirror {
    const char *work;         /* the folder; borrowed */
    struct node_file **files; /* sorted by name */
    uint32_t n;
    uint64_t begun, finished; /* numbers of passes */
    int64_t begun_ns;
    struct node_file *file; /* under way; NULL: none */
    int fd;
    bool replace;
    int64_t offset, size;
    struct stat info;
};

void node_mirror_init(struct node_mirror *self, const char *work);
void node_mirror_fini(struct node_mirror *self);
/* Goes on with the pass while the writer has room. wanted: a new one begins at once if none is under way. */
void node_mirror_tend(struct node_mirror *self, struct host_writer *writer, int64_t now_ns, bool wanted);
/* True if there is something to send now. */
bool node_mirror_busy(const struct node_mirror *self);
/* The launcher has just sent this file. */
void node_mirror_received(struct node_mirror *self, const char *name, const struct stat *info);
/* The launcher asks for the whole file: its copy has another size. Heeded every few seconds, because two hosts may write files of
 * one name. */
void node_mirror_again(struct node_mirror *self, const char *name, int64_t now_ns);

#endif
