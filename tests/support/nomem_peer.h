/* Clients of an embedded broker that may have no memory: only the broker's allocations fail (this file wraps broker_new and
 * broker_turn), and what it refuses for lack of memory is asked for once more. */
#ifndef TESTS_SUPPORT_NOMEM_PEER_H
#define TESTS_SUPPORT_NOMEM_PEER_H

#include "tests/support/nomem_scene.h"
#include "tests/support/testpeer.h"

/* A peer whose requests may be refused with NO_MEMORY, once. */
struct testpeer *nomem_peer(struct embed *embed);
/* The same with a session of two columns: "x", a uint64, and "big", uint8[big]. */
struct testpeer *nomem_writer(struct embed *embed, uint32_t big);
/* A request was refused: fails the test unless there was no memory. */
void nomem_refused(struct testpeer *peer, const struct testpeer_answer *answer);
/* Pushes, and sends again what was lost for lack of memory, until the broker has received everything. */
void nomem_push(struct testpeer *peer);

#endif
