/* The thread that asks. It makes one state for all who look; nobody looks, nothing is asked. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/page/page_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* Somebody looks: a browser in front asks every second, one in the background every four. */
#define LOOKING_NS (8 * NS_PER_S)
#define EVERY_NS (NS_PER_S * 9 / 10)
#define FRESH_NS (2 * NS_PER_S)

static int64_t now_ns(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

static bool is_same(const struct page_door *a, const struct page_door *b)
{
    return strcmp(a->service, b->service) == 0 && a->has_key == b->has_key && a->key.n_brokers == b->key.n_brokers &&
           memcmp(a->key.brokers, b->key.brokers, sizeof a->key.brokers) == 0;
}

/* Connects to the broker of now, unless the client is for it already: it may listen elsewhere, or have another key. The client belongs
 * to the watch's thread. */
static rp_client *connect_now(void *ctx)
{
    struct page *self = ctx;
    struct page_watch *watch = &self->watch;
    struct page_door door = {0};
    self->host.find(self->host.ctx, &door);
    if (!watch->client || !is_same(&door, &watch->door)) {
        if (watch->client)
            rp_client_destroy(&watch->client);
        watch->client = page_connect(&door);
        watch->door = door;
    }
    key_wipe(&door.key);
    return watch->client;
}

static void wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t at = until.tv_sec * NS_PER_S + until.tv_nsec + ns;
    until = (struct timespec){.tv_sec = at / NS_PER_S, .tv_nsec = at % NS_PER_S};
    pthread_cond_timedwait(cond, lock, &until);
}

static void *watch_main(void *ctx)
{
    struct page *self = ctx;
    struct page_watch *watch = &self->watch;
    pthread_setname_np(pthread_self(), "page");
    rp_wait_set(page_is_leaving, self);
    pthread_mutex_lock(&watch->lock);
    while (!watch->stop) {
        int64_t now = now_ns();
        bool wanted = watch->asked_ns && now - watch->asked_ns < LOOKING_NS;
        if (!wanted || now - watch->made_ns < EVERY_NS) {
            wait_until(&watch->asked, &watch->lock, wanted ? EVERY_NS - (now - watch->made_ns) : LOOKING_NS);
            continue;
        }
        pthread_mutex_unlock(&watch->lock);
        char *state = page_state(&self->host, connect_now, self);
        pthread_mutex_lock(&watch->lock);
        free(watch->state);
        watch->state = state;
        watch->made_ns = now_ns();
        pthread_cond_broadcast(&watch->made);
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

rp_status page_watch_start(struct page *self, rp_error *err)
{
    struct page_watch *watch = &self->watch;
    pthread_condattr_t monotonic;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->asked, &monotonic);
    pthread_cond_init(&watch->made, &monotonic);
    pthread_condattr_destroy(&monotonic);
    watch->started = pthread_create(&watch->thread, NULL, watch_main, self) == 0;
    return watch->started ? RP_OK : err_set(err, RP_RESOURCE_EXHAUSTED, "no thread for the page");
}

void page_watch_stop(struct page *self)
{
    struct page_watch *watch = &self->watch;
    if (watch->started) {
        pthread_mutex_lock(&watch->lock);
        watch->stop = true;
        pthread_cond_signal(&watch->asked);
        pthread_mutex_unlock(&watch->lock);
        pthread_join(watch->thread, NULL);
    }
    if (watch->client)
        rp_client_destroy(&watch->client);
    key_wipe(&watch->door.key);
    free(watch->state);
    pthread_cond_destroy(&watch->asked);
    pthread_cond_destroy(&watch->made);
    pthread_mutex_destroy(&watch->lock);
}

char *page_watch_state(struct page *self)
{
    struct page_watch *watch = &self->watch;
    pthread_mutex_lock(&watch->lock);
    int64_t now = now_ns(), end = now + 3 * PAGE_ASK_MS * NS_PER_MS;
    watch->asked_ns = now;
    pthread_cond_signal(&watch->asked);
    while ((!watch->state || now - watch->made_ns > FRESH_NS) && now < end) {
        wait_until(&watch->made, &watch->lock, end - now);
        now = now_ns();
    }
    char *state = watch->state ? strdup(watch->state) : NULL;
    pthread_mutex_unlock(&watch->lock);
    return state;
}
