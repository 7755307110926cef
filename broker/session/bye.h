/* BYE: the writer wants to end its session. The request waits until the session's last items are resolved. */
#ifndef BROKER_BYE_H
#define BROKER_BYE_H

#include <stdint.h>

#include "replay/error.h"

struct request;
struct session;

/* Lets the request wait until message last_number and all items are resolved; answers at once if they are. An error: the
 * request does not wait. */
rp_status bye_begin(struct session *session, struct request *request, uint64_t last_number, uint64_t timeout_ms,
                    rp_error *err);
/* If the session's last items are resolved, answers its BYE and closes the session. */
void bye_check(struct session *session);
/* Answers the session's BYE with an error: the session expires. */
void bye_cancel(struct session *session);

#endif
