/* What the files of parameters share: params.c, publisher.c, subscriber.c. */
#ifndef AGENT_CLIENT_PARAMS_H
#define AGENT_CLIENT_PARAMS_H

#include "agent/client/conn/client.h"
#include "replay/params.h"

rp_status params_check_name(const char *name, rp_error *err);
/* The version in a reply to ParamsPut; version may be NULL. */
rp_status params_read_version(const struct conn_reply *reply, uint64_t *version, rp_error *err);
/* The slots of a reply to ParamsGet; takes the reply. RP_DEADLINE_EXCEEDED: none of them is newer. */
rp_status params_read(const char *const *names, const uint64_t *have, uint32_t n, struct conn_reply *reply,
                      rp_params **out, rp_error *err);

#endif
