/* The room agent/view: how a broker and a run are shown. why.c is the sentence about what limits; tui.c has views on a terminal; this
 * is the page: a broker before people's eyes, in a browser. It owns the files of the page (files/, compiled in) and the answers that
 * they ask for. It has no server and no thread: a program that serves the page mounts its routes (proto/http). replay-broker shows
 * itself so, from its own snapshots; replay-launch adds what it knows of a run, whose broker it asks as a client. */
#pragma once

#include <stdbool.h>

#include "agent/view/why.h"
#include "proto/base/format.h"
#include "proto/http/http.h"
#include "proto/keys/keys.h"

/* How to reach a broker. */
struct page_door {
    char service[256]; /* "": no broker is known */
    bool has_key;
    struct key key;
};

/* What is known of a run, beside its broker. Starts zero-initialised, and stays so without a run. */
struct page_run {
    char *status; /* JSON; NULL: there is none. Given to the page */
    bool alive;
    bool folder_only; /* the broker is not asked */
    char node[256];   /* machine of the run, if it is another one; "" */
    struct why_run facts;
    bool has_facts;
    struct why why;    /* with a level: instead of what the broker says */
    const char *level; /* "good", "warn", "bad"; NULL: the broker's answers decide */
    bool if_silent;    /* the broker's answers decide if there are any */
};

/* The program that serves the page. Its functions are called from the page's threads. */
struct page_host {
    void *ctx;
    void (*find)(void *ctx, struct page_door *out);
    /* Gives the state of a broker that is this process, as rp_admin_info does, and what waits, as rp_admin_why does (waits may be
     * NULL). NULL: the broker that `find` finds is asked. */
    rp_status (*show)(void *ctx, bool sessions, rp_info **info, rp_info **waits, rp_error *err);
    void (*look)(void *ctx, struct page_run *out); /* NULL: there is no run */
    const char *what;                              /* that `stop` ends: "run", "broker" */
    /* Ends it in order, as a signal would; *already: somebody has asked before, and nothing is done. NULL: it cannot be ended from here. */
    rp_status (*stop)(void *ctx, bool *already, rp_error *err);
};

struct page;
/* host is copied. Never NULL. */
struct page *page_new(const struct page_host *host);
/* Ends calls that wait for the broker; their requests are answered with an error. To be called before the server is stopped. */
void page_leave(struct page *self);
/* The server is stopped. NULL is fine. */
void page_destroy(struct page **self);
/* The routes of the page. The last one takes every path, so other routes come first. */
struct http_part page_part(struct page *self);
/* The files alone. */
struct http_part page_files(void);

/* Writes the page as one file that needs no server: it shows these answers, a JSON object from paths ("api/state") to what the server
 * would answer. */
void page_put_alone(struct text *out, const char *answers);
/* Returns a fresh state, for which the broker is asked unless somebody has just done so: JSON, without its last "}"; free(). NULL: no
 * memory. */
char *page_state(struct page *self);
/* True if somebody has looked within the last seconds. */
bool page_is_watched(struct page *self);
