/* The page room: a run before people's eyes. It owns an HTTP server (proto/http), the files of the page (files/, compiled in) and
 * a thread that asks the broker once a second as long as somebody looks. It may use the run's folder and status (observe), the list
 * of runs (report), the sentence about what limits (agent/why) and the client library. It holds no state of the run: what it
 * shows comes from the broker and from the run's folder, so it shows a run that has ended in the same way. */
#ifndef AGENT_LAUNCH_PAGE_H
#define AGENT_LAUNCH_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/error.h"

struct page_options {
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

struct page;
struct page *page_start(const struct page_options *options, rp_error *err);
void page_stop(struct page **self);
/* "http://127.0.0.1:40123/?token=...": whoever has it may also change things. */
const char *page_url(const struct page *self);
/* The same without the token. */
const char *page_address(const struct page *self);

#endif
