/* What the files of this room share. */
#ifndef AGENT_LAUNCH_PAGE_IMPL_H
#define AGENT_LAUNCH_PAGE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/page/page.h"
#include "proto/http/http.h"
#include "replay/client.h"

#define PAGE_ASK_MS 1500

/* The newest answer to "what is going on", made by a thread of its own while somebody looks. */
struct page_watch {
    pthread_t thread;
    bool started;
    rp_client *client;    /* of the thread alone; NULL: no broker is known */
    char service[256];    /* that the client is for */
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t asked, made;
    bool stop;
    int64_t asked_ns, made_ns; /* monotonic; 0: never */
    char *state;               /* JSON without its last "}"; NULL: none yet */
};

struct page {
    struct page_options options;
    char folder[FOLDER_SIZE], runs[FOLDER_SIZE], service[256], key_file[1024];
    char token[65];
    char address[96], url[192];
    atomic_flag stopped; /* the run was asked to end */
    struct http *http;
    struct page_watch watch;
};

/* page_watch.c */
rp_status page_watch_start(struct page *self, rp_error *err);
void page_watch_stop(struct page *self);
/* Copies the newest state, after a moment of waiting for one that is fresh. NULL: no memory. */
char *page_watch_state(struct page *self);
/* The state of another run, from its folder alone. NULL: no memory. */
char *page_folder_state(const char *folder);
/* Finds the run that a request names (run=NAME, below the folder of all runs), or the page's own. False: there is none. (page_run.c) */
bool page_find_run(const struct page *self, const struct http_request *request, char out[FOLDER_SIZE]);
/* Calls with the client of the broker, or NULL; the client lives until the call returns. */
void page_with_client(struct page *self, void (*call)(rp_client *client, void *ctx), void *ctx);

/* Handlers of requests. */
void page_get_file(void *ctx, const struct http_request *request, struct http_reply *reply);      /* page_files.c */
void page_get_state(void *ctx, const struct http_request *request, struct http_reply *reply);     /* page_broker.c */
void page_get_histogram(void *ctx, const struct http_request *request, struct http_reply *reply); /* page_histogram.c */
void page_get_sessions(void *ctx, const struct http_request *request, struct http_reply *reply);
void page_get_items(void *ctx, const struct http_request *request, struct http_reply *reply);
void page_get_item(void *ctx, const struct http_request *request, struct http_reply *reply);
void page_do(void *ctx, const struct http_request *request, struct http_reply *reply);          /* page_change.c */
void page_get_history(void *ctx, const struct http_request *request, struct http_reply *reply); /* page_run.c */
void page_get_log(void *ctx, const struct http_request *request, struct http_reply *reply);
void page_get_runs(void *ctx, const struct http_request *request, struct http_reply *reply);
void page_get_run(void *ctx, const struct http_request *request, struct http_reply *reply);

#endif
