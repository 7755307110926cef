/* Inside the node agent: shared by node.c (the loop, and what the launcher asks for), node_children.c (processes),
 * node_mirror.c (their files), node_facts.c (the machine) and node_network.c (questions about the network). */
#ifndef AGENT_LAUNCH_NODE_IMPL_H
#define AGENT_LAUNCH_NODE_IMPL_H

#include <json-c/json.h>
#include <poll.h>

#include "agent/launch/host/host_folder.h"
#include "agent/launch/host/host_line.h"
#include "agent/launch/host/node.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/machine_load.h"
#include "agent/launch/process/process.h"

#define NODE_CHILDREN_MOST 4096u
#define NODE_FILES_MOST 16384u

struct node_child {
    uint32_t id;
    struct process process;
    int output; /* our end of its pipe; -1: closed */
    bool ended;
    int status;
    uint64_t pass; /* of the mirror that must be over before its end is reported */
    char text[sizeof(((rp_error *)0)->text)];
};

/* What the launcher has of a file. */
struct node_file {
    char *name;
    dev_t device;
    ino_t inode;
    int64_t sent;            /* bytes that the launcher has */
    struct timespec changed; /* when the file was last seen */
    bool whole;              /* to be sent from its beginning */
    uint64_t seen;           /* the last pass in which the file was there */
    int64_t again_ns;        /* when the launcher last asked for the whole file; 0: never */
};

/* Passes over the work folder: each finds the files that have changed, and sends what is new in them. */
struct node_mirror {
    struct node_file *files; /* sorted by name */
    uint32_t n, capacity;
    char **queue; /* names of the files that this pass sends */
    uint32_t queued, at;
    uint64_t begun, finished; /* numbers of passes */
    int64_t begun_ns;
    /* The file under way. */
    int fd; /* -1: none */
    bool replace;
    int64_t offset, size;
    struct stat info;
};

struct node {
    int in, out;
    struct host_reader reader;
    struct host_writer writer;
    struct host_noise noise;
    struct guard guard;
    struct interrupts interrupts;
    char work[512], here[512];
    int lock; /* shows that the work folder is in use */
    struct host_folder folder;
    bool greeted, over;
    int64_t lease_ns, heard_ns, usage_ns, alive_ns; /* alive_ns: the last sign of life for the guard */
    struct machine_load load;
    struct node_child **children;
    uint32_t n, capacity, turn; /* turn: the child whose output is read first */
    struct node_mirror mirror;
    int answers[2]; /* pipe from the threads of node_network.c: one line of JSON each */
    struct pollfd *polls;
    uint32_t polls_capacity;
};

/* node_children.c */
void node_children_start(struct node *self, struct json_object *line);
struct node_child *node_children_find(struct node *self, uint32_t id);
/* Forwards output as long as the queue has room, and reports ends. */
void node_children_tend(struct node *self);
/* Adds the usage of as many children as fit on a line, from the index on. Returns the index of the next one. */
uint32_t node_children_usage(struct node *self, uint32_t from, struct json_object *line);
/* Kills all, and waits for their ends. */
void node_children_end(struct node *self);

/* node_mirror.c */
void node_mirror_init(struct node_mirror *self);
void node_mirror_fini(struct node_mirror *self);
/* Goes on with the pass. wanted: a new one begins at once if none is under way. */
void node_mirror_tend(struct node *self, int64_t now_ns, bool wanted);
/* True if there is something to send now. */
bool node_mirror_busy(const struct node_mirror *self);
/* The launcher has just sent this file. */
void node_mirror_received(struct node_mirror *self, const char *name, const struct stat *info);
/* The launcher asks for the whole file: its copy has another size. Heeded every few seconds, because two hosts may write files of
 * one name. */
void node_mirror_again(struct node_mirror *self, const char *name, int64_t now_ns);

/* node_facts.c */
/* Makes the work folder. */
rp_status node_work_make(struct node *self, rp_error *err);
void node_work_remove(struct node *self);
/* Fills in what "ready" says. */
void node_facts_add(struct node *self, struct json_object *line);

/* node_network.c */
/* Each runs in a thread of its own, which writes its answer to self->answers. */
void node_network_reach(struct node *self, struct json_object *line);
void node_network_measure(struct node *self, struct json_object *line);
/* Sends the answers that are there. */
void node_network_tend(struct node *self);

#endif
