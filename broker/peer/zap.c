#include "broker/peer/zap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "broker/loop/loop.h"
#include "broker/peer/frames.h"
#include "broker/peer/peers.h"
#include "proto/base/error.h"

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_VERSION "1.0"
/* Requests that a turn answers: a flood of handshakes must not hold up the clients that are in. */
#define ZAP_PER_TURN 16u

/* Frames of a request. */
enum { VERSION, REQUEST_ID, DOMAIN, ADDRESS, ROUTING_ID, MECHANISM, CREDENTIALS, REQUEST_FRAMES };

rp_status zap_open(struct peers *peers, rp_error *err)
{
    struct identities *self = &peers->identities;
    if (!self->on)
        return RP_OK;
    int linger = 0;
    self->zap = zmq_socket(peers->context, ZMQ_REP);
    if (self->zap)
        zmq_setsockopt(self->zap, ZMQ_LINGER, &linger, sizeof linger);
    if (!self->zap || zmq_bind(self->zap, ZAP_ENDPOINT) != 0)
        return err_set(err, RP_IO, "cannot answer handshakes in this ZeroMQ context: %s", zmq_strerror(errno));
    return RP_OK;
}

void zap_close(struct peers *peers)
{
    if (peers->identities.zap)
        zmq_close(peers->identities.zap);
    peers->identities.zap = NULL;
}

static bool is_text(zmq_msg_t *frame, const char *text)
{
    return zmq_msg_size(frame) == strlen(text) && memcmp(zmq_msg_data(frame), text, strlen(text)) == 0;
}

/* Returns the identity that asks. NULL: it is not let in, and *why says the reason. */
static const struct identity *judge(struct peers *peers, zmq_msg_t *frames, uint32_t n, const char **why)
{
    *why = "the handshake cannot be read";
    if (n != REQUEST_FRAMES || !is_text(&frames[VERSION], ZAP_VERSION) || !is_text(&frames[DOMAIN], ZAP_DOMAIN))
        return NULL;
    *why = "the client does not use CURVE";
    if (!is_text(&frames[MECHANISM], "CURVE") || zmq_msg_size(&frames[CREDENTIALS]) != KEY_BYTES)
        return NULL;
    *why = "the key is not allowed";
    identities_look(peers); /* a key that was allowed a moment ago counts */
    const uint8_t *key = zmq_msg_data(&frames[CREDENTIALS]);
    const struct identity *identity = identity_find(&peers->identities, key);
    return identity && identity->roles ? identity : NULL;
}

static void log_refusal(struct peers *peers, zmq_msg_t *frames, uint32_t n, const char *why)
{
    struct identities *self = &peers->identities;
    uint32_t held;
    char key[KEY_TEXT] = "-", address[64] = "-", quoted[80];
    self->refused++;
    if (!log_allow(&self->log, 5, peers->loop->now_ns, &held))
        return;
    if (n == REQUEST_FRAMES && zmq_msg_size(&frames[CREDENTIALS]) == KEY_BYTES)
        key_text(zmq_msg_data(&frames[CREDENTIALS]), key);
    if (n > ADDRESS)
        snprintf(address, sizeof address, "%.*s", (int)zmq_msg_size(&frames[ADDRESS]),
                 (const char *)zmq_msg_data(&frames[ADDRESS]));
    log_line(LEVEL_WARN, "B0606", "connection refused", "address=%s key=%s why=\"%s\" held_back=%u",
             log_quote(quoted, sizeof quoted, address), key, why, held);
}

static void answer(struct identities *self, zmq_msg_t *request_id, const struct identity *identity)
{
    char number[16] = "";
    if (identity)
        snprintf(number, sizeof number, "%u", identity->number);
    const char *texts[] = {ZAP_VERSION, NULL, identity ? "200" : "400", identity ? "OK" : "unknown key", number, ""};
    for (uint32_t i = 0; i < 6; i++) {
        int more = i < 5 ? ZMQ_SNDMORE : 0;
        if (texts[i])
            zmq_send(self->zap, texts[i], strlen(texts[i]), more | ZMQ_DONTWAIT);
        else
            zmq_send(self->zap, zmq_msg_data(request_id), zmq_msg_size(request_id), more | ZMQ_DONTWAIT);
    }
}

bool zap_run(struct peers *peers)
{
    struct identities *self = &peers->identities;
    zmq_msg_t frames[REQUEST_FRAMES + 1];
    uint32_t n, served = 0;
    bool whole;
    while (self->zap && served < ZAP_PER_TURN &&
           frames_receive((struct way){self->zap, NULL}, frames, REQUEST_FRAMES + 1, &n, &whole)) {
        const char *why;
        const struct identity *identity = judge(peers, frames, n, &why);
        if (!identity)
            log_refusal(peers, frames, n, why);
        zmq_msg_t none;
        zmq_msg_init(&none);
        answer(self, n > REQUEST_ID ? &frames[REQUEST_ID] : &none, identity);
        frames_close(frames, n);
        served++;
    }
    return served > 0;
}
