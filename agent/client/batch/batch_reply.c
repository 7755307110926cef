/* Decodes a reply of a connection. */
#include <stdlib.h>

#include "agent/client/batch/batch.h"
#include "agent/client/conn/conn.h"
#include "proto/base/error.h"

rp_status batch_decode_reply(struct batch_decoder *self, struct conn_reply *reply, struct rp_batch **out, rp_error *err)
{
    struct batch_frame few[64], *frames = few;
    struct wire_sampled view;
    if (reply->view.body != REPLAY__REPLY__BODY_SAMPLE)
        return err_set(err, RP_BAD_MESSAGE, "the broker's reply holds no items");
    RP_TRY(wire_read_sampled(reply->view.data, reply->view.size, &view, err));
    if (reply->n_payload > 64) {
        frames = malloc(reply->n_payload * sizeof *frames);
        if (!frames)
            return err_set(err, RP_NO_MEMORY, "no memory for a reply of %u frames", reply->n_payload);
    }
    for (uint32_t i = 0; i < reply->n_payload; i++)
        frames[i] = (struct batch_frame){zmq_msg_data(&reply->payload[i]), zmq_msg_size(&reply->payload[i])};
    struct batch_reply read = {&view, reply->view.text, frames, reply->n_payload};
    rp_status status = batch_decode(self, &read, out, err);
    if (frames != few)
        free(frames);
    return status;
}
