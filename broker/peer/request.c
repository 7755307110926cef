#include "broker/peer/request.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "proto/base/error.h"
#include "proto/base/utf8.h"
#include "proto/wire/pb.h"

/* A reply, or a frame of one, that is smaller than this is not charged to its peer: libzmq's bound on the number of queued
 * messages is enough. */
#define SMALL_REPLY_BYTES 4096u
/* libzmq stores a message of up to this size inside zmq_msg_t: it allocates nothing. */
#define INLINE_BYTES 33u

static bool encode(struct pb_writer *out, uint64_t id, const struct answer *answer)
{
    pb_put_varint(out, 1, WIRE_VERSION);
    pb_put_fixed64(out, 2, id);
    pb_put_varint(out, 3, (uint64_t)answer->status);
    if (answer->text && answer->text[0]) {
        size_t size = strlen(answer->text);
        pb_put_bytes(out, 4, answer->text, size);
        if (!out->failed) /* the text may quote what a client sent */
            utf8_clean((char *)out->data + (out->size - size), size);
    }
    if (answer->body) {
        size_t size = protobuf_c_message_get_packed_size(answer->body);
        pb_tag(out, answer->field, PB_BYTES);
        pb_varint(out, size);
        uint8_t *place = pb_reserve(out, size);
        if (place)
            protobuf_c_message_pack(answer->body, place);
    }
    return !out->failed;
}

/* Encodes the reply to something that was done: into memory that was reserved if there is no other. */
static bool encode_done(struct kept_replies *kept, struct pb_writer *out, uint64_t id, const struct answer *answer)
{
    if (encode(out, id, answer))
        return true;
    size_t size = answer->body ? protobuf_c_message_get_packed_size(answer->body) : 0;
    uint8_t *spare = kept_replies_spare(kept, size + (answer->text ? strlen(answer->text) : 0) + 64);
    if (!spare)
        return false;
    pb_writer_fini(out);
    *out = (struct pb_writer){.data = spare, .capacity = KEPT_REPLY_BYTES};
    return encode(out, id, answer);
}

/* Charges the peer for the large frames. RP_RESOURCE_EXHAUSTED: it has left too many replies unread. */
static rp_status charge(const struct peers *peers, struct peer *peer, size_t header, const struct answer *answer)
{
    size_t bytes = header;
    for (uint32_t i = 0; i < answer->n_payload; i++)
        bytes += zmq_msg_size(&answer->payload[i]);
    if (bytes > SMALL_REPLY_BYTES && peer_is_full(peers, peer))
        return RP_RESOURCE_EXHAUSTED;
    bool ok = true;
    for (uint32_t i = 0; ok && i < answer->n_payload; i++)
        ok = zmq_msg_size(&answer->payload[i]) <= SMALL_REPLY_BYTES || peer_charge(peer, &answer->payload[i]);
    return ok ? RP_OK : RP_NO_MEMORY;
}

static void close_payload(const struct answer *answer)
{
    for (uint32_t i = 0; i < answer->n_payload; i++)
        zmq_msg_close(&answer->payload[i]);
}

/* Sends a reply that says only that there is no memory, and that needs none. It does not wait for the journal, since it
 * confirms nothing. The client asks again with the same id. */
static void send_no_memory(struct peers *peers, const struct envelope *to, uint64_t id)
{
    peers->counters.replies_dropped++;
    if (!id)
        return; /* a notice: the next heartbeat carries the same numbers */
    uint8_t bytes[13] = {0x08, WIRE_VERSION, 0x11}, *at = bytes + 3;
    memcpy(at, &id, sizeof id);
    at[8] = 0x18;
    at[9] = RP_NO_MEMORY;
    zmq_msg_t header;
    zmq_msg_init_size(&header, sizeof bytes);
    memcpy(zmq_msg_data(&header), bytes, sizeof bytes);
    peer_send_now(peers, to, &header, NULL, 0);
}

/* A connection within a machine has the same address at both ends. */
bool request_is_remote(const struct request *request)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_size = sizeof here, there_size = sizeof there;
    if (request->descriptor < 0 || getsockname(request->descriptor, (struct sockaddr *)&here, &here_size) != 0 ||
        getpeername(request->descriptor, (struct sockaddr *)&there, &there_size) != 0 ||
        here.ss_family != there.ss_family)
        return false;
    if (here.ss_family == AF_INET)
        return memcmp(&((struct sockaddr_in *)&here)->sin_addr, &((struct sockaddr_in *)&there)->sin_addr,
                      sizeof(struct in_addr)) != 0;
    return here.ss_family == AF_INET6 &&
           memcmp(&((struct sockaddr_in6 *)&here)->sin6_addr, &((struct sockaddr_in6 *)&there)->sin6_addr,
                  sizeof(struct in6_addr)) != 0;
}

void request_put_tracing(const struct peers *peers, struct pb_writer *out)
{
    struct pb_writer grown = *out;
    uint8_t bytes[27];
    uint64_t values[3] = {peers->tracing.number, (uint64_t)clock_now(&peers->loop->clock),
                          (uint64_t)peers->tracing.end_ns};
    if (out->failed || !peers->tracing.number)
        return;
    for (uint32_t i = 0; i < 3; i++) {
        bytes[9 * i] = (uint8_t)((i + 1) << 3 | PB_FIXED64);
        memcpy(&bytes[9 * i + 1], &values[i], sizeof values[i]);
    }
    pb_put_bytes(&grown, 5, bytes, sizeof bytes);
    if (!grown.failed) /* without memory the client is told by the next reply */
        *out = grown;
}

/* Sends a header that is encoded in out, which is taken, and the answer's payload. */
static void send_encoded(struct peers *peers, const struct envelope *to, uint64_t id, struct pb_writer *out,
                         const struct answer *answer)
{
    zmq_msg_t header;
    if (trace_on(&peers->loop->trace))
        request_put_tracing(peers, out);
    if (answer->status != RP_OK && (uint32_t)answer->status < STATUS_COUNT)
        peers->counters.failed[answer->status]++;
    if (answer->n_payload == 0 && !out->failed && out->size <= INLINE_BYTES &&
        zmq_msg_init_size(&header, out->size) == 0) {
        memcpy(zmq_msg_data(&header), out->data, out->size);
        pb_writer_fini(out);
        peer_send(peers, to, &header, NULL, 0);
        return;
    }
    static const struct answer too_many_unread = {
        .status = RP_RESOURCE_EXHAUSTED,
        .text = "this client has left too many replies unread: read them before asking for more"};
    struct peer *peer = peer_find(peers, to);
    rp_status charged = peer && !out->failed ? charge(peers, peer, out->size, answer) : RP_NO_MEMORY;
    if (charged == RP_RESOURCE_EXHAUSTED) {
        close_payload(answer);
        answer = &too_many_unread;
        out->size = 0;
        encode(out, id, answer);
    }
    bool ok = charged != RP_NO_MEMORY && !out->failed;
    if (!ok)
        pb_writer_fini(out);
    if (!ok || !peer_frame(peer, &header, out->data, out->size)) {
        close_payload(answer);
        send_no_memory(peers, to, id);
        return;
    }
    peer_send(peers, to, &header, answer->payload, answer->n_payload);
}

static void keep(struct peers *peers, uint64_t client, uint64_t id, const struct pb_writer *reply)
{
    kept_replies_add(&peers->kept_replies, peers->loop, &(struct kept_reply){client, id, reply->data, reply->size});
}

void request_send(struct peers *peers, const struct envelope *to, uint64_t id, const struct answer *answer)
{
    struct pb_writer out = {0};
    encode(&out, id, answer);
    send_encoded(peers, to, id, &out, answer);
}

void request_fail(struct peers *peers, const struct envelope *to, uint64_t id, rp_status status, const char *text)
{
    request_send(peers, to, id, &(struct answer){.status = status, .text = text});
}

void request_finish(struct peers *peers, const struct wait *wait, uint32_t field, const ProtobufCMessage *body)
{
    struct answer answer = {.status = RP_OK, .field = field, .body = body};
    struct pb_writer out = {0};
    if (encode_done(&peers->kept_replies, &out, wait->id, &answer))
        keep(peers, wait->client, wait->id, &out);
    send_encoded(peers, &wait->to, wait->id, &out, &answer);
}

void request_reply(struct peers *peers, struct request *request, const struct answer *answer)
{
    struct pb_writer out = {0};
    uint64_t id = request->head.id;
    request->answered = true;
    /* A reply that does not wait for the journal tells of no change: the request may be done twice. */
    bool remember = request->remember && !peers->commit.ahead;
    if (answer->status != RP_OK)
        encode(&out, id, answer);
    else if (encode_done(&peers->kept_replies, &out, id, answer) && remember)
        keep(peers, request->head.client, id, &out);
    send_encoded(peers, &request->from, id, &out, answer);
}

void request_ok(struct peers *peers, struct request *request, uint32_t field, const ProtobufCMessage *body)
{
    request_reply(peers, request, &(struct answer){.status = RP_OK, .field = field, .body = body});
}

rp_status request_repeat(struct peers *peers, struct request *request, bool *found, rp_error *err)
{
    const struct kept_reply *reply = kept_replies_find(&peers->kept_replies, request->head.client, request->head.id);
    *found = reply != NULL;
    zmq_msg_t header;
    if (!reply)
        return RP_OK;
    if (zmq_msg_init_size(&header, reply->size) != 0)
        return err_set(err, RP_NO_MEMORY, "no memory to repeat a reply of %zu bytes", reply->size);
    memcpy(zmq_msg_data(&header), reply->frame, reply->size);
    request->answered = true;
    peer_send(peers, &request->from, &header, NULL, 0);
    return RP_OK;
}
