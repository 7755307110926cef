#include "proto/http/http_links.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "proto/base/clock.h"

/* Most time for a request to arrive, and for its answer to be made and read. In a crowd a request has the time of a few round
 * trips. */
static const struct patience {
    int64_t request_ns, answer_ns;
} calm = {10 * NS_PER_S, 30 * NS_PER_S}, crowd = {NS_PER_S / 2, 10 * NS_PER_S};
#define DRAIN_NS NS_PER_S
#define LOOK_NS (NS_PER_S / 4)

struct http_link {
    struct http_link *next, **prev;
    int fd;
    int64_t since_ns; /* when it began to wait for a request, or to answer one */
    bool answers, cut;
};

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

static bool is_crowded(const struct http_links *self)
{
    return self->n >= self->most - self->most / 4;
}

/* A connection leaves the list before libmicrohttpd closes its descriptor, so a descriptor in the list is open. */
static void cut_late(struct http_links *self)
{
    const struct patience *patience = is_crowded(self) ? &crowd : &calm;
    int64_t now_ns = now();
    for (struct http_link *link = self->first; link; link = link->next)
        if (now_ns - link->since_ns >= (link->answers ? patience->answer_ns : patience->request_ns) && !link->cut) {
            link->cut = true;
            shutdown(link->fd, SHUT_RDWR);
        }
}

static void *links_thread(void *arg)
{
    struct http_links *self = arg;
    pthread_setname_np(pthread_self(), "http");
    pthread_mutex_lock(&self->mutex);
    while (!self->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t at = until.tv_sec * NS_PER_S + until.tv_nsec + LOOK_NS;
        until = (struct timespec){at / NS_PER_S, at % NS_PER_S};
        if (self->first)
            pthread_cond_timedwait(&self->changed, &self->mutex, &until);
        else
            pthread_cond_wait(&self->changed, &self->mutex);
        cut_late(self);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

bool http_links_start(struct http_links *self, uint32_t most)
{
    pthread_condattr_t attributes;
    self->most = most;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* the wall clock may jump */
    pthread_cond_init(&self->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    self->started = pthread_create(&self->thread, NULL, links_thread, self) == 0;
    return self->started;
}

static bool answers_any(struct http_links *self)
{
    bool any = false;
    pthread_mutex_lock(&self->mutex);
    for (const struct http_link *link = self->first; link && !any; link = link->next)
        any = link->answers && !link->cut;
    pthread_mutex_unlock(&self->mutex);
    return any;
}

void http_links_drain(struct http_links *self)
{
    const struct timespec moment = {.tv_nsec = 2 * NS_PER_MS};
    for (int64_t end_ns = now() + DRAIN_NS; answers_any(self) && now() < end_ns;)
        nanosleep(&moment, NULL);
}

void http_links_stop(struct http_links *self)
{
    if (!self->started)
        return;
    pthread_mutex_lock(&self->mutex);
    self->stop = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    pthread_join(self->thread, NULL);
    self->started = false;
}

static struct http_link *add(struct http_links *self, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct http_link *link = info ? calloc(1, sizeof *link) : NULL;
    if (!link)
        return NULL; /* it has libmicrohttpd's own timeout */
    *link = (struct http_link){.next = self->first, .prev = &self->first, .fd = info->connect_fd, .since_ns = now()};
    self->n++;
    if (link->next)
        link->next->prev = &link->next;
    else
        pthread_cond_signal(&self->changed);
    self->first = link;
    return link;
}

static void drop(struct http_links *self, struct http_link *link)
{
    if (!link)
        return;
    self->n--;
    *link->prev = link->next;
    if (link->next)
        link->next->prev = link->prev;
    free(link);
}

void http_links_notify(void *ctx, struct MHD_Connection *connection, void **link,
                       enum MHD_ConnectionNotificationCode code)
{
    struct http_links *self = ctx;
    pthread_mutex_lock(&self->mutex);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *link = add(self, connection);
    } else {
        drop(self, *link);
        *link = NULL;
    }
    pthread_mutex_unlock(&self->mutex);
}

void http_links_answers(struct http_links *self, struct MHD_Connection *connection, bool answers)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_link *link = info ? info->socket_context : NULL;
    if (!link)
        return;
    pthread_mutex_lock(&self->mutex);
    link->since_ns = now();
    link->answers = answers;
    pthread_mutex_unlock(&self->mutex);
}

bool http_links_crowded(struct http_links *self)
{
    pthread_mutex_lock(&self->mutex);
    bool crowded = is_crowded(self);
    pthread_mutex_unlock(&self->mutex);
    return crowded;
}
