/* Inside one connection: shared by host.c (its life), host_in.c (what the node agent says), host_out.c (what it is told),
 * host_send.c (our programs), host_ask.c (questions) and host_place.c (processes there). */
#ifndef AGENT_LAUNCH_HOST_IMPL_H
#define AGENT_LAUNCH_HOST_IMPL_H

#include <json-c/json.h>

#include "agent/launch/host/host.h"
#include "agent/launch/host/host_folder.h"
#include "agent/launch/host/host_line.h"

/* A process there. Its struct process may be anywhere, so it is known by its number. */
struct host_process {
    uint32_t number; /* 0: the launcher has heard of its end */
    int64_t left_ns; /* ... at this time */
    char name[64];   /* "": its connection is lost, and so are its files */
    char log[512];
    pid_t pid;   /* 0: not known yet */
    bool exited; /* there; its last output and files are on their way */
    bool ended;
    int status;
    bool has_usage;
    struct process_usage usage;
};

/* A line, or a file that is read piece by piece as the queue has room. They leave in order. */
struct host_parcel {
    struct json_object *line; /* NULL: a file */
    int fd;
    char name[HOST_FILE_NAME];
    uint32_t mode;
    int64_t offset, size;
    struct host_parcel *next;
};

struct host_answer {
    bool waiting, done, ok;
    double rate;
    char text[256];
};

/* Our programs on their way to a host that lacks them. */
struct host_sending {
    struct bundle *bundle; /* NULL: there is none */
    bool asked;            /* the host waits until the bundle is packed */
    int fd;                /* of the bundle; -1: it is not on its way */
    int64_t sent;          /* bytes, over this connection */
    int64_t moved_ns;      /* when the newest of them left, or when the bundle was still being packed */
};

struct host {
    struct process_place place; /* must be first */
    char name[HOST_NAME];
    char **carrier;
    char here[HOST_PATH];
    struct guard *guard;
    int64_t lease_ns;

    enum host_state state;
    int64_t since_ns;
    char reason[512];
    uint32_t times;
    struct host_facts facts;
    struct host_load load;

    pid_t pid;           /* of the carrier; 0: none */
    bool reopen;         /* the next connection begins when this carrier has ended */
    int64_t leave_by_ns; /* a carrier whose connection is closed is killed then; 0: the connection is in use */
    int carrier_status;  /* valid if the carrier has ended while the connection was in use */
    int64_t eof_ns;      /* when the node agent's output ended; 0: not yet */
    int in, out, err;    /* the carrier's standard streams; -1: closed */
    struct host_writer writer;
    struct host_reader reader, errors;
    struct host_noise noise;
    int64_t heard_ns, tended_ns, pinged_ns;
    int64_t moved_ns; /* when the newest piece of a file or of output came; 0: none has come */
    bool busy;        /* the last look found much to read */

    struct host_parcel *first, **last;
    struct host_folder folder;
    bool refused; /* this connection has sent a file that is not taken, and the log says so */
    struct host_process *processes;
    uint32_t n_processes, process_capacity, numbers;
    struct host_answer measure, reach;
    struct host_sending sending;
};

/* host.c */
void host_set_state(struct host *self, enum host_state state, int64_t now_ns);
void host_lose(struct host *self, int64_t now_ns, const char *reason);
void host_say_hello(struct host *self);
/* host_in.c */
/* Reads and handles lines. False: the output of the agent has ended. */
bool host_in_read(struct host *self);
/* Reads what the carrier has written to its standard error. */
void host_in_errors(struct host *self);
/* host_out.c */
/* Queues a line behind the files and lines before it, and takes the object. False: it is too long, or there is no memory. */
bool host_out_line(struct host *self, struct json_object *line);
rp_status host_out_file(struct host *self, const char *path, const char *name, rp_error *err);
/* Writes parcels as long as the carrier takes them. */
void host_out_feed(struct host *self);
void host_out_fini(struct host *self);
/* host_send.c */
/* The host has asked for our programs. Without a bundle it is lost. */
void host_send_begin(struct host *self);
/* Sends what the connection takes now. */
void host_send_feed(struct host *self, int64_t now_ns);
void host_send_end(struct host *self);
/* host_place.c */
void host_place_init(struct host *self);
struct host_process *host_place_find(struct host *self, uint32_t number);
/* True if the file belongs to a process that runs there: NAME.*, NAME/, tb/NAME, each also below profile/X/; of learners, also what
 * they save (learner.*, snapshots/). */
bool host_place_owns(const struct host *self, const char *file);
/* All processes end with PROCESS_LOST. */
void host_place_lose(struct host *self);

#endif
