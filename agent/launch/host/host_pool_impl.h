/* Inside the pool: host_pool.c (which hosts there are, and whether they are open) and host_pool_context.c (what they get). */
#ifndef AGENT_LAUNCH_HOST_POOL_IMPL_H
#define AGENT_LAUNCH_HOST_POOL_IMPL_H

#include "agent/launch/host/bundle.h"
#include "agent/launch/host/host_folder.h"
#include "agent/launch/host/host_pool.h"

#define POOL_PATH 1024u
/* Overrides that a host may need beyond those of home: actors.weights, environment.plugin. */
#define POOL_OVERRIDES 2u

struct pool_host {
    char name[HOST_NAME];
    struct host *host; /* NULL: home */
    char **carrier;    /* of a source's host */
    bool actors, learners;
    double cores, memory;   /* of the file; 0: those of the machine */
    bool wanted;            /* to be kept open */
    bool dropped;           /* its key was revoked: never wanted again */
    char keys[2][KEY_NAME]; /* names of its keys for actors and learners; "": none */
    enum host_state state;
    uint32_t failures; /* failed attempts and losses so far */
    uint32_t greeted;  /* host_times when configuration and keys were sent last */
    int64_t ready_ns, open_ns, pause_ns;
    /* ---- what host_pool_context gives out */
    char config_path[POOL_PATH], folder[POOL_PATH], here[POOL_PATH];
    struct endpoints endpoints;
    struct run_keys run_keys;
    const char **overrides; /* those of the base, then own ones, then NULL */
    char own_overrides[POOL_OVERRIDES][POOL_PATH + 64];
};

/* A file that every host gets. */
struct pool_file {
    char *path, *name; /* at home; in the work folder there */
};

struct host_pool {
    struct host_pool_options options;
    char hostname[HOST_NAME]; /* of home */
    struct pool_host **hosts; /* the first is home */
    uint32_t n;
    int64_t open_ns; /* when the next connection may be opened */
    bool has_bundle;
    struct bundle bundle;
    struct pool_file *files; /* of launch.send */
    uint32_t n_files;
    int64_t keys_ns;        /* when the list of keys was looked at */
    struct timespec listed; /* when that list was changed */
    struct host **old;      /* former connections of a source's hosts */
    uint32_t n_old;
};

/* host_pool.c */
/* Takes a host out of the run for good. */
void pool_drop(struct host_pool *self, struct pool_host *one, const char *why);
/* host_pool_context.c */
/* Finds the files of launch.send. */
rp_status pool_find_files(struct host_pool *self, rp_error *err);
void pool_free_files(struct host_pool *self);
/* Sends a host that has become ready what its processes need. */
void pool_greet(struct host_pool *self, struct pool_host *one);
void pool_free_context(struct pool_host *one);

#endif
