/* What the thin load generators share. */
#include "bench/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "proto/base/rng.h"
#include "proto/wire/pb.h"
#include "proto/wire/wire.h"

void load_fail(struct load *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(self->lane->text, sizeof self->lane->text, format, args);
    va_end(args);
    lane_set_state(self->lane, LANE_FAILED);
    _exit(1);
}

Replay__Request load_request(uint64_t id)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    request.version = WIRE_VERSION;
    request.id = id;
    rng_system(&request.client, sizeof request.client);
    return request;
}

uint8_t *load_encode(const Replay__Request *request, size_t *size, size_t *id_at)
{
    *size = replay__request__get_packed_size(request);
    uint8_t *frame = malloc(*size);
    if (!frame)
        abort();
    replay__request__pack(request, frame);
    struct pb_reader reader = pb_reader(frame, *size);
    struct pb_field field;
    *id_at = 0;
    while (*id_at == 0 && pb_next(&reader, &field) == 1)
        if (field.number == 2)
            *id_at = (size_t)(reader.at - frame) - 8;
    return frame;
}

Replay__Reply *load_ask(struct load *self, void *socket, const Replay__Request *request)
{
    size_t size, id_at;
    uint8_t *frame = load_encode(request, &size, &id_at);
    zmq_send(socket, frame, size, 0);
    free(frame);
    for (;;) {
        zmq_msg_t head;
        zmq_msg_init(&head);
        if (zmq_msg_recv(&head, socket, 0) < 0)
            load_fail(self, "the broker does not answer");
        Replay__Reply *reply = replay__reply__unpack(NULL, zmq_msg_size(&head), zmq_msg_data(&head));
        zmq_msg_close(&head);
        if (!reply)
            load_fail(self, "a reply could not be decoded");
        if (reply->id == request->id) {
            if (reply->status != 0)
                load_fail(self, "the broker says: %s", reply->text);
            return reply;
        }
        replay__reply__free_unpacked(reply, NULL);
    }
}

void *load_dealer(struct load *self, void *context, uint32_t connections)
{
    void *socket = zmq_socket(context, ZMQ_DEALER);
    int timeout_ms = 30000;
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    curve_connect(socket);
    for (uint32_t i = 0; socket && i < connections; i++)
        if (zmq_connect(socket, self->service) != 0)
            load_fail(self, "cannot connect to %s", self->service);
    if (!socket)
        load_fail(self, "no socket");
    return socket;
}
