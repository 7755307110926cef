/* All hosts of a run, this machine first, and what processes need to know in each of them. The pool opens hosts, opens lost ones
 * again with a growing pause, and sends each ready host the run's configuration and keys. */
#pragma once

#include "agent/config/config.h"
#include "agent/launch/host/host.h"
#include "agent/launch/process/command.h"

#define HOST_POOL_HOME 0u /* index of this machine: always ready, without a struct host */
#define HOST_POOL_MOST 1024u
#define HOST_POOL_PATH 1024u

struct host_pool;

/* A host of the pool. */
struct pool_host {
    struct host *host;            /* NULL: home */
    const struct host_info *info; /* that of home says that it is ready, and was never taken in */
    bool takes[ROLES];            /* whether processes of a role may run there */
    double cores, memory;         /* that they may use: of the file, or else those of the machine; 0: not known yet */
    bool ready;                   /* connected, with configuration and keys: processes can be started */
    bool dropped;                 /* out of the run for good, since its key was revoked */
    bool wanted;                  /* to be kept open */
    /* ---- of the pool alone */
    double given;           /* cores of the file; 0: none */
    char keys[2][KEY_NAME]; /* names of its keys for actors and learners; "": none */
    uint32_t failures;      /* failed attempts and losses so far */
    uint32_t greeted;       /* info->times when configuration and keys were sent last */
    int64_t ready_ns, open_ns, pause_ns;
    /* What host_pool_context gives out. */
    char config_path[HOST_POOL_PATH], folder[HOST_POOL_PATH], here[HOST_POOL_PATH];
    struct endpoints endpoints;
    struct run_keys run_keys;
    struct words overrides; /* those of the base, then own ones */
};

/* Where hosts come from when they come and go: array tasks of Slurm. Pure ssh hosts have none. */
struct host_source {
    /* Says which hosts exist now by host_pool_appear and host_pool_vanish. Never waits long. */
    void (*look)(struct host_source *self, struct host_pool *pool, int64_t now_ns);
    /* The run has this many actors now: the source asks for as many hosts. NULL: the hosts are what they are. */
    void (*want)(struct host_source *self, uint32_t actors);
};

struct host_pool_options {
    struct command_context home; /* config_path NULL: hosts are only tried, and get nothing */
    struct host_source *source;  /* may be NULL */
};

/* With hosts of the file, or only with home. */
struct host_pool *host_pool_new(const struct host_pool_options *options, rp_error *err);
void host_pool_destroy(struct host_pool **self);

/* To be called about every 50 ms; while the pool is busy, files or output are on their way, and more often makes them faster. */
void host_pool_tend(struct host_pool *self, int64_t now_ns);
bool host_pool_busy(const struct host_pool *self);
/* Waits until every host is ready or has failed for 3 s, and each role of a run has a host that is ready; at most `ns`.
 * stop(context): true ends the wait. Returns how many are ready, home included. */
uint32_t host_pool_await(struct host_pool *self, int64_t ns, bool (*stop)(void *context), void *context);

uint32_t host_pool_count(const struct host_pool *self); /* 1: only home */
const struct pool_host *host_pool_at(const struct host_pool *self, uint32_t index);
/* Names the kind of a host: machines of one kind have the same processor and the same number of cores. Home is a kind of its own: the
 * broker runs there, and no network lies between. Gives out. */
const char *host_pool_kind(const struct host_pool *self, uint32_t index, char *out, size_t size);

/* The address under which processes there reach a broker that listens on all addresses of this machine: broker.advertise, if it is
 * not ""; the address that the connection comes from, in brackets if it is one of IPv6 and the broker listens there; or this
 * machine's name. Gives out. */
const char *host_pool_home_address(const struct host_facts *facts, const struct broker_config *broker, char *out,
                                   size_t size);
/* Gives the endpoint under which processes there reach a broker. configured: what its file says; bound: as processes of this machine
 * reach it. A broker that is bound to one address is reached there, unless the file advertises another. False: it has no address. */
bool host_pool_endpoint(const struct host_facts *facts, const struct broker_config *broker, const char *configured,
                        const char *bound, char *out, size_t size);
/* Fills in what a process needs there: programs, config, folders, keys, endpoints that are reached from there, and its place. base:
 * the context at home. `out` borrows from the pool and from base until the next call for the same host. */
void host_pool_context(struct host_pool *self, uint32_t index, const struct command_context *base,
                       struct command_context *out);
/* The configuration at home has changed: it is sent to all hosts again. */
void host_pool_config_changed(struct host_pool *self);

/* True if a host that is ready takes the role. */
bool host_pool_has(const struct host_pool *self, enum role role);
/* The run has this many actors now: a source asks for as many hosts. */
void host_pool_want(struct host_pool *self, uint32_t actors);

/* For a source: a host is there (carrier: how to reach it), or is not. The index of a name never changes. */
rp_status host_pool_appear(struct host_pool *self, const char *name, const char *const *carrier, double cores,
                           int64_t now_ns, rp_error *err);
/* Takes a host in that the file does not name, reached and used as the first host of the file is; or one again that has vanished. */
rp_status host_pool_add(struct host_pool *self, const char *name, int64_t now_ns, rp_error *err);
/* Returns the index of a host that is wanted; 0: there is none of this name. */
uint32_t host_pool_find(const struct host_pool *self, const char *name);
/* Ends the connection and does not open it again. */
void host_pool_vanish(struct host_pool *self, const char *name);
