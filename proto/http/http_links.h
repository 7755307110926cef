/* The connections of a server, and how long each may take: libmicrohttpd's own timeout begins anew with every byte, so a client
 * that sends a byte a second could keep a connection for hours. A thread cuts connections whose time is over. When most of the
 * connections that the server takes are in use, those that wait for a request have little time, and each reply ends its
 * connection: whoever holds many connections cannot keep others out for long. */
#ifndef PROTO_HTTP_LINKS_H
#define PROTO_HTTP_LINKS_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct http_link;

struct http_links {
    pthread_mutex_t mutex; /* of everything below */
    pthread_cond_t changed;
    struct http_link *first;
    uint32_t n, most; /* connections; how many the server takes */
    bool stop;
    pthread_t thread;
    bool started;
};

/* Starts the thread. most: connections that the server takes. False: there is no thread. */
bool http_links_start(struct http_links *self, uint32_t most);
/* Waits until answers that are being made are sent, a second at most. */
void http_links_drain(struct http_links *self);
/* Ends the thread. There are no connections any more. */
void http_links_stop(struct http_links *self);
/* For MHD_OPTION_NOTIFY_CONNECTION; ctx: the links. */
void http_links_notify(void *ctx, struct MHD_Connection *connection, void **link,
                       enum MHD_ConnectionNotificationCode code);
/* A request has arrived and is answered; or its answer is sent, and another may come. */
void http_links_answers(struct http_links *self, struct MHD_Connection *connection, bool answers);
/* True if most of the connections that the server takes are in use. */
bool http_links_crowded(struct http_links *self);

#endif
