/* What all samples of a broker share. */
#ifndef BROKER_SAMPLES_H
#define BROKER_SAMPLES_H

#include "broker/sample/waiter.h"

struct broker;
struct reply_build;

struct samples {
    struct waiter *spare_waiters;
    uint32_t n_spare_waiters;
    struct reply_build *build; /* working memory of replies */
    struct recall *recall;     /* samples that may be asked for again */
};

/* req_sample.c: answers with the picks (text: why there are fewer than asked for, or NULL) and ends the waiter. */
void sample_answer(struct broker *broker, struct waiter *waiter, const char *text);
/* The same with an error: the picks are lost. */
void sample_fail(struct broker *broker, struct waiter *waiter, rp_status status, const char *text);

#endif
