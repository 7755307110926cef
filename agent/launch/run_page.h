/* The pages of runs: an HTTP server with, for each run, the page of its broker (agent/view) and what a launcher knows beyond it. It holds
 * no state of a run: what it shows comes from the broker and from the run's folder, so it shows runs of other launchers and runs that
 * have ended in the same way. The page of the run NAME in the folder of runs with the number N is at /N/NAME/. */
#pragma once

#include <stdbool.h>

#include "agent/launch/home.h"
#include "replay/error.h"

/* Texts are borrowed until the page stops; NULL is "". */
struct run_page_options {
    const char *address; /* "127.0.0.1:0": a page of its own; another port: the page of all runs (home.h) */
    const char *folder;  /* of the run; "": there is none */
    /* For a page of its own. */
    const char *service;  /* endpoint of a broker without a run; "": the run's folder says it */
    const char *key_file; /* for that broker; "": the run's admin key if there is one */
};

struct run_page {
    char address[96 + HOME_PAGE]; /* "http://127.0.0.1:7650/1/cartpole/" */
    char url[192 + HOME_PAGE];    /* the same with the token: whoever has it may also change things */
    struct run_server *server;
};

/* Serves; or, if another process of this user serves the page of all runs, takes over when it ends. RP_UNAVAILABLE: the address is
 * somebody else's. */
struct run_page *run_page_start(const struct run_page_options *options, rp_error *err);
/* True if another process serves the page of all runs. */
bool run_page_is_elsewhere(const struct run_page *self);
/* The run is over and its report is written. Gives whoever looks a moment to read the last state and the report, which a browser then
 * goes on to show without a server. NULL is fine. */
void run_page_end(struct run_page *self);
void run_page_stop(struct run_page **self);
/* The newest state of the run, for tests: free(). */
char *run_page_state(struct run_page *self);
