/* What most programs need of the client library. Apart from it stand collective.h (shared counters, sums over learners) and trace.h. */
#ifndef REPLAY_REPLAY_H
#define REPLAY_REPLAY_H

#include "replay/admin.h"
#include "replay/client.h"
#include "replay/error.h"
#include "replay/log.h"
#include "replay/params.h"
#include "replay/sampler.h"
#include "replay/types.h"
#include "replay/writer.h"

#endif
