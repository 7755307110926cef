#include "agent/client/sampler/crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

struct crew {
    uint32_t size;
    bool tried;         /* to start the helpers */
    uint32_t n_helpers; /* that run: there may be fewer than wanted */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool stopping;
    crew_fn *fn; /* of the job */
    void *ctx;
    uint32_t n, next, finished; /* slices: of the job, to be taken next, done */
    struct helper {
        struct crew *crew;
        uint32_t number;
        pthread_t thread;
    } helpers[];
};

/* Does slices while there are some. Called with the lock held, which is released meanwhile. */
static void do_slices(struct crew *self, uint32_t worker)
{
    while (self->next < self->n) {
        uint32_t slice = self->next++;
        pthread_mutex_unlock(&self->lock);
        self->fn(self->ctx, worker, slice);
        pthread_mutex_lock(&self->lock);
        if (++self->finished == self->n)
            pthread_cond_signal(&self->done);
    }
}

static void *helper_main(void *arg)
{
    const struct helper *helper = arg;
    struct crew *self = helper->crew;
    pthread_mutex_lock(&self->lock);
    while (!self->stopping) {
        do_slices(self, helper->number);
        if (!self->stopping)
            pthread_cond_wait(&self->work, &self->lock);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* Threads leave the host program's signals alone. */
static void start_helpers(struct crew *self)
{
    sigset_t all, before;
    self->tried = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (self->n_helpers + 1 < self->size) {
        struct helper *helper = &self->helpers[self->n_helpers];
        *helper = (struct helper){.crew = self, .number = self->n_helpers + 1};
        if (pthread_create(&helper->thread, NULL, helper_main, helper) != 0)
            break; /* the others do its work */
        pthread_setname_np(helper->thread, "gather");
        self->n_helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

struct crew *crew_new(uint32_t threads)
{
    struct crew *self = calloc(1, sizeof *self + threads * sizeof self->helpers[0]);
    if (!self)
        return NULL;
    self->size = threads;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->work, NULL);
    pthread_cond_init(&self->done, NULL);
    return self;
}

void crew_destroy(struct crew **self_p)
{
    struct crew *self = *self_p;
    *self_p = NULL;
    if (!self)
        return;
    pthread_mutex_lock(&self->lock);
    self->stopping = true;
    pthread_cond_broadcast(&self->work);
    pthread_mutex_unlock(&self->lock);
    for (uint32_t i = 0; i < self->n_helpers; i++)
        pthread_join(self->helpers[i].thread, NULL);
    pthread_cond_destroy(&self->work);
    pthread_cond_destroy(&self->done);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

uint32_t crew_size(const struct crew *self)
{
    return self->size;
}

void crew_run(struct crew *self, uint32_t n, crew_fn *fn, void *ctx)
{
    if (!self->tried && n > 1)
        start_helpers(self);
    pthread_mutex_lock(&self->lock);
    self->fn = fn;
    self->ctx = ctx;
    self->n = n;
    self->next = self->finished = 0;
    if (n > 1 && self->n_helpers)
        pthread_cond_broadcast(&self->work);
    do_slices(self, 0);
    while (self->finished < self->n)
        pthread_cond_wait(&self->done, &self->lock);
    pthread_mutex_unlock(&self->lock);
}
