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

/* The longest time that a handshake waits for a list of keys that is being written. */
#define HOLD_NS NS_PER_S

/* Frames of a request. */
enum { VERSION, REQUEST_ID, DOMAIN, ADDRESS, ROUTING_ID, MECHANISM, CREDENTIALS, REQUEST_FRAMES };
_Static_assert(REQUEST_FRAMES == ZAP_FRAMES, "room for a held request");

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
    if (peers->identities.held_ns)
        frames_close(peers->identities.held, ZAP_FRAMES);
    peers->identities.held_ns = 0;
    if (peers->identities.zap)
        zmq_close(peers->identities.zap);
    peers->identities.zap = NULL;
}

static bool is_text(zmq_msg_t *frame, const char *text)
{
    return zmq_msg_size(frame) == strlen(text) && memcmp(zmq_msg_data(frame), text, strlen(text)) == 0;
}

/* Returns the identity that asks. NULL: it is not let in, and *why says the reason; a NULL there: the key is not allowed so far,
 * and the list may be newer than what was read. libzmq's clients do not come back after a refusal, so a key that was allowed a moment
 * ago must count. */
static const struct identity *judge(struct peers *peers, zmq_msg_t *frames, uint32_t n, int64_t asked_ns,
                                    const char **why)
{
    *why = "the handshake cannot be read";
    if (n != REQUEST_FRAMES || !is_text(&frames[VERSION], ZAP_VERSION))
        return NULL;
    bool ingest = is_text(&frames[DOMAIN], ZAP_DOMAIN_INGEST);
    if (!ingest && !is_text(&frames[DOMAIN], ZAP_DOMAIN))
        return NULL;
    *why = "the client does not use CURVE";
    if (!is_text(&frames[MECHANISM], "CURVE") || zmq_msg_size(&frames[CREDENTIALS]) != KEY_BYTES)
        return NULL;
    identities_look(peers);
    const uint8_t *key = zmq_msg_data(&frames[CREDENTIALS]);
    const struct identity *identity = identity_find(&peers->identities, key);
    uint32_t roles = identity ? identity->roles : 0;
    *why = peers->identities.known_ns < asked_ns ? NULL
           : roles                               ? "the key may not write: ingest is for the role actor"
                                                 : "the key is not allowed";
    return roles & (ingest ? KEY_ACTOR | KEY_ADMIN : KEY_ANY) ? identity : NULL;
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

/* Answers a request that came at asked_ns, and closes its frames. False: it has to wait. */
static bool serve(struct peers *peers, zmq_msg_t *frames, uint32_t n, int64_t asked_ns)
{
    const char *why;
    const struct identity *identity = judge(peers, frames, n, asked_ns, &why);
    if (!identity && !why && clock_now(&peers->loop->clock) - asked_ns < HOLD_NS)
        return false;
    if (!identity)
        log_refusal(peers, frames, n, why ? why : "the key is not allowed, and the list of keys cannot be read");
    zmq_msg_t none;
    zmq_msg_init(&none);
    answer(&peers->identities, n > REQUEST_ID ? &frames[REQUEST_ID] : &none, identity);
    frames_close(frames, n);
    return true;
}

/* True if no request waits any more. The timer that looks at the keys wakes the core thread for the next try. */
static bool serve_held(struct peers *peers)
{
    struct identities *self = &peers->identities;
    if (self->held_ns && serve(peers, self->held, ZAP_FRAMES, self->held_ns))
        self->held_ns = 0;
    return !self->held_ns;
}

static void hold(struct identities *self, zmq_msg_t *frames, int64_t asked_ns)
{
    for (uint32_t i = 0; i < ZAP_FRAMES; i++) {
        zmq_msg_init(&self->held[i]);
        zmq_msg_move(&self->held[i], &frames[i]);
    }
    frames_close(frames, ZAP_FRAMES);
    self->held_ns = asked_ns;
}

bool zap_run(struct peers *peers)
{
    struct identities *self = &peers->identities;
    zmq_msg_t frames[REQUEST_FRAMES + 1];
    uint32_t n, served = 0;
    bool whole;
    while (self->zap && served < ZAP_PER_TURN && serve_held(peers) &&
           frames_receive((struct way){self->zap, NULL}, frames, REQUEST_FRAMES + 1, &n, &whole)) {
        int64_t asked_ns = clock_now(&peers->loop->clock);
        if (!serve(peers, frames, n, asked_ns))
            hold(self, frames, asked_ns);
        served++;
    }
    return served > 0;
}
