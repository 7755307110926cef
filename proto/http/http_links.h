/* The connections of a server, and how long each may take: libmicrohttpd's own timeout begins anew with every byte, so a client
 * that sends a byte a second could keep a connection for hours. A thread cuts connections whose time is over. */
#ifndef PROTO_HTTP_LINKS_H
#define PROTO_HTTP_LINKS_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdbool.h>

struct http_link;

struct http_links {
    pthread_mutex_t mutex; /* of everything below */
    pthread_cond_t changed;
    struct http_link *first;
    bool stop;
    pthread_t thread;
    bool started;
};

/* Starts the thread. False: there is none. */
bool http_links_start(struct http_links *self);
/* Ends the thread. There are no connections any more. */
void http_links_stop(struct http_links *self);
/* For MHD_OPTION_NOTIFY_CONNECTION; ctx: the links. */
void http_links_notify(void *ctx, struct MHD_Connection *connection, void **link,
                       enum MHD_ConnectionNotificationCode code);
/* A request has arrived and is answered; or its answer is sent, and another may come. */
void http_links_answers(struct http_links *self, struct MHD_Connection *connection, bool answers);

#endif
