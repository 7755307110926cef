/* What the files of this room share. */
#ifndef AGENT_PAGE_IMPL_H
#define AGENT_PAGE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "agent/page/page.h"
#include "replay/client.h"

#define PAGE_ASK_MS 1500

/* The newest answer to "what is going on", made by a thread of its own while somebody looks. */
struct page_watch {
    pthread_t thread;
    bool started;
    rp_client *client;     /* of the thread alone; NULL: no broker is known */
    struct page_door door; /* that the client came through */
    pthread_mutex_t lock;  /* of everything below */
    pthread_cond_t asked, made;
    bool stop;
    int64_t asked_ns, made_ns; /* monotonic; 0: never */
    char *state;               /* JSON without its last "}"; NULL: none yet */
};

struct page {
    struct page_host host;
    atomic_bool leaving;  /* no call waits for the broker any more */
    atomic_flag stopping; /* whatever the host can end was asked to end */
    struct page_watch watch;
};

/* page_watch.c */
rp_status page_watch_start(struct page *self, rp_error *err);
void page_watch_stop(struct page *self);
/* Copies the newest state, after a moment of waiting for one that is fresh. NULL: no memory. */
char *page_watch_state(struct page *self);

/* page_state.c: a state, with the answers of a client's broker; NULL: no broker answers. */
char *page_state(const struct page_host *host, rp_client *(*connect)(void *ctx), void *ctx);

/* page.c */
/* Returns a client of the broker that the host names now; NULL: nobody answers, or no broker is known. */
rp_client *page_connect(const struct page_door *door);
/* For rp_wait_set: 1 if calls that wait for the broker are to end. */
int page_is_leaving(void *page);
/* Calls with the client of the broker, or NULL; the client lives until the call returns. */
void page_with_client(struct page *self, void (*call)(rp_client *client, void *ctx), void *ctx);

/* Handlers of requests. */
void page_get_file(void *ctx, const struct http_request *request, struct http_reply *reply);      /* page_files.c */
void page_get_histogram(void *ctx, const struct http_request *request, struct http_reply *reply); /* page_histogram.c */
void page_get_writers(void *ctx, const struct http_request *request, struct http_reply *reply);   /* page_broker.c */
void page_get_items(void *ctx, const struct http_request *request, struct http_reply *reply);
void page_get_item(void *ctx, const struct http_request *request, struct http_reply *reply);
void page_do(void *ctx, const struct http_request *request, struct http_reply *reply); /* page_change.c */

#endif
