/* The page of a run: an HTTP server with the page of its broker (agent/view) and what a launcher knows beyond it. It holds no state of the
 * run: what it shows comes from the broker and from the run's folder, so it shows a run that has ended in the same way. */
#ifndef AGENT_LAUNCH_RUN_PAGE_H
#define AGENT_LAUNCH_RUN_PAGE_H

#include <stdbool.h>

#include "agent/view/page.h"
#include "proto/http/http.h"
#include "replay/error.h"

/* Texts are borrowed until the page stops; NULL is "". */
struct run_page_options {
    const char *address;  /* "127.0.0.1:0" */
    const char *folder;   /* of the run; "": there is none, only a broker */
    const char *runs;     /* folder of all runs; "": none are listed */
    const char *service;  /* endpoint of a broker without a run; "": the run's folder says it */
    const char *key_file; /* for that broker; "": the run's admin key if there is one */
    bool secure;          /* the broker has keys: looking needs the token, too */
    /* Ends the run in order; NULL: this process does not run it. Called from another thread. */
    void (*stop)(void *ctx);
    void *ctx;
};

struct run_page {
    struct run_page_options options;
    char token[HTTP_TOKEN];
    char address[96]; /* "http://127.0.0.1:40123/" */
    char url[192];    /* the same with the token: whoever has it may also change things */
    struct page *page;
    struct http *http;
};
struct run_page *run_page_start(const struct run_page_options *options, rp_error *err);
void run_page_stop(struct run_page **self);

#endif
