/* The page of all runs: where it is served, by whom, and which runs it shows. On each machine one process of a user serves it, at one
 * address: a launcher, or replay-launch open. When that process ends, another launcher takes over. What they share is in the user's
 * cache: the token, the folders of runs, and a lock that the server holds. The lock proves that the address is not somebody
 * else's: nobody is sent there with the token otherwise. */
#pragma once

#include <stdint.h>

#include "agent/launch/process/run_folder.h"
#include "proto/http/http.h"

struct home {
    char cache[FOLDER_SIZE];
    char address[HTTP_ADDRESS];
    char token[HTTP_TOKEN];
    int lock; /* -1: another process serves, or none */
};

/* Returns the address that is given, or instead of the default (NULL, or launch.http as it is without a file) what REPLAY_PAGE says. */
const char *home_address(const char *given);
/* True if an address stands for the page of all runs: with port 0 nobody could find it again. */
bool home_is_shared(const char *address);

/* Reads the token, or makes the first one. */
rp_status home_open(struct home *self, const char *address, rp_error *err);
/* Adds the folder in which a run's folder lies, and gives the path of the run's page, as addresses write it: "1/NAME/". */
#define HOME_PAGE 800
rp_status home_add(struct home *self, const char *run, char *page, size_t size, rp_error *err);
/* Gives the folder of runs with a number, from 1 on. False: there is none. */
bool home_folder(const struct home *self, uint32_t number, char out[FOLDER_SIZE]);
/* True if this process may serve from now on: no other one does. */
bool home_lock(struct home *self);
void home_unlock(struct home *self);
