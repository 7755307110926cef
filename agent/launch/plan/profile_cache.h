/* Measurements in a file of the user's cache: one file for each configuration, build and kinds of machines. */
#ifndef AGENT_LAUNCH_PROFILE_CACHE_H
#define AGENT_LAUNCH_PROFILE_CACHE_H

#include "agent/launch/plan/profile.h"

/* Returns the key, a text of everything that the measurements depend on, which are the programs, the
 * configuration and the machines: free(). */
char *profile_key(const struct profile_options *options, const char *machines);
/* 64-bit FNV-1a. */
uint64_t profile_hash(const char *text);
/* False: there is no file, it belongs to another key, or it is damaged. out: plan_input_free. */
bool profile_load(const char *key, struct plan_input *out);
/* Replaces the file, whole or not at all. */
rp_status profile_store(const char *key, const struct plan_input *input, rp_error *err);

#endif
