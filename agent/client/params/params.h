/* The room agent/client/params owns parameter slots (params.c; publisher.c and subscriber.c over params_link.c), counters
 * (counter.c) and sums over learners (reduce.c). All of it is public in replay/params.h; this header is what its files share.
 * The room uses conn. */
#ifndef AGENT_CLIENT_PARAMS_H
#define AGENT_CLIENT_PARAMS_H

#include "agent/client/conn/client.h"
#include "replay/params.h"

rp_status params_check_name(const char *name, rp_error *err);
/* Reads the version in a reply to ParamsPut; version may be NULL. */
rp_status params_read_version(const struct conn_reply *reply, uint64_t *version, rp_error *err);
/* Reads the slots of a reply to ParamsGet; takes the reply. RP_DEADLINE_EXCEEDED: it has no slots. */
rp_status params_read(const char *const *names, const uint64_t *have, uint32_t n, struct conn_reply *reply,
                      rp_params **out, rp_error *err);

#endif
