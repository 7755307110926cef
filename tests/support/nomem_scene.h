/* Scenes that are played again and again, each time with another allocation that fails (nomem.h): once, and then with all
 * allocations after it. What there is in the end must be the same as without a failure, and nothing may leak. */
#pragma once

#include <stddef.h>

#include "tests/support/nomem.h"

struct run;   /* the test program's: what a scene works with */
struct state; /* the test program's: what there is in the end */
struct nomem_scene;

/* Plays a scene with nomem_arm(n, mode) around its act. n 0: nothing fails. */
typedef void nomem_play_fn(const struct nomem_scene *scene, uint64_t n, enum nomem_mode mode, struct state *out);

struct nomem_scene {
    const char *name;
    void (*prepare)(struct run *run); /* NULL: nothing to prepare */
    void (*act)(struct run *run);
    const char *more;                     /* keys of the configuration, or NULL */
    bool threads;                         /* other threads have no memory, either */
    bool only_once;                       /* without memory for ever, the scene would wait for ever */
    nomem_play_fn *play;                  /* NULL: the group's */
    void (*before)(void), (*after)(void); /* around all plays; NULL: nothing */
};

struct nomem_group {
    const struct nomem_scene *scenes;
    uint32_t n;
    nomem_play_fn *play;
    void (*compare)(const struct state *want, const struct state *got);
    size_t state_bytes;
    uint32_t step; /* of all allocations after one that fail: every how many-th is the first. 0: each */
};

/* Runs each scene as a test. Gives main's exit status. NOMEM_ONLY in the environment: the name of a scene. */
int nomem_main(const struct nomem_group *group);
