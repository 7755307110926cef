#include "proto/base/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/forks.h"

/* A span of more than a hundred days, or a time after as many years, is no time. */
#define DURATION_MOST (INT64_C(8640000) * NS_PER_S)
#define TIME_MOST (INT64_C(1) << 62)

void trace_list_fini(struct trace_list *self)
{
    free(self->spans);
    free(self->texts);
    free(self->sources);
    *self = (struct trace_list){0};
}

void trace_init(struct trace *self)
{
    atomic_init(&self->on, false);
    pthread_mutex_init(&self->lock, NULL);
    self->list = (struct trace_list){0};
}

void trace_fini(struct trace *self)
{
    trace_list_fini(&self->list);
    pthread_mutex_destroy(&self->lock);
}

bool trace_start(struct trace *self, uint32_t capacity)
{
    struct trace_list fresh = {.spans = malloc(capacity * sizeof *fresh.spans),
                               .texts = malloc(TRACE_TEXTS * sizeof *fresh.texts),
                               .sources = malloc(TRACE_TEXTS * sizeof(*fresh.sources)),
                               .capacity = capacity};
    if (!fresh.spans || !fresh.texts || !fresh.sources) {
        trace_list_fini(&fresh);
        return false;
    }
    pthread_mutex_lock(&self->lock);
    trace_list_fini(&self->list);
    self->list = fresh;
    atomic_store(&self->on, true);
    pthread_mutex_unlock(&self->lock);
    return true;
}

void trace_stop(struct trace *self, struct trace_list *out)
{
    pthread_mutex_lock(&self->lock);
    atomic_store(&self->on, false);
    *out = self->list;
    self->list = (struct trace_list){0};
    pthread_mutex_unlock(&self->lock);
}

/* Returns the index of a text; TRACE_TEXTS: there is no room for it. */
static uint32_t intern(struct trace_list *self, const char *text)
{
    const size_t most = TRACE_TEXT_BYTES - 1;
    for (uint32_t i = 0; i < self->n_texts; i++)
        if (self->sources[i] == text && strncmp(self->texts[i], text, most) == 0)
            return i;
    for (uint32_t i = 0; i < self->n_texts; i++)
        if (strncmp(self->texts[i], text, most) == 0)
            return i;
    if (self->n_texts == TRACE_TEXTS)
        return TRACE_TEXTS;
    self->sources[self->n_texts] = text;
    snprintf(self->texts[self->n_texts], TRACE_TEXT_BYTES, "%s", text);
    return self->n_texts++;
}

/* Returns "name 1234" for the calling thread. It is made once, because it takes two system calls; a fork changes it. */
static const char *thread_text(void)
{
    static _Thread_local char text[TRACE_TEXT_BYTES];
    static _Thread_local uint32_t forks;
    if (!text[0] || forks != forks_count()) {
        char name[16] = "";
        pthread_getname_np(pthread_self(), name, sizeof name);
        snprintf(text, sizeof text, "%s %ld", name, (long)syscall(SYS_gettid));
        forks = forks_count();
    }
    return text;
}

void trace_add(struct trace *self, const char *name, const char *track, const struct trace_span *span)
{
    if (!trace_on(self))
        return;
    if (!track)
        track = thread_text();
    pthread_mutex_lock(&self->lock);
    struct trace_list *list = &self->list;
    bool room = list->spans && list->n < list->capacity;
    uint32_t name_at = room ? intern(list, name) : TRACE_TEXTS, track_at = room ? intern(list, track) : TRACE_TEXTS;
    if (name_at < TRACE_TEXTS && track_at < TRACE_TEXTS) {
        struct trace_span *at = &list->spans[list->n++];
        *at = *span;
        at->name = (uint16_t)name_at;
        at->track = (uint8_t)track_at;
    } else if (list->spans) {
        list->dropped++;
    }
    pthread_mutex_unlock(&self->lock);
}

void trace_add_until_now(struct trace *self, const char *name, const char *track, int64_t start_ns, uint32_t count)
{
    int64_t now = trace_now(self);
    if (now)
        trace_add(self, name, track,
                  &(struct trace_span){.start_ns = start_ns, .duration_ns = now - start_ns, .count = count});
}

bool trace_spans_are_sound(const void *records, uint32_t n, uint32_t n_texts)
{
    for (uint32_t i = 0; i < n; i++) {
        struct trace_span span;
        memcpy(&span, (const char *)records + i * sizeof span, sizeof span);
        if (span.name >= n_texts || span.track >= n_texts || span.link >= TRACE_LINKS || span.start_ns < 0 ||
            span.start_ns > TIME_MOST || span.duration_ns < 0 || span.duration_ns > DURATION_MOST)
            return false;
    }
    return true;
}
