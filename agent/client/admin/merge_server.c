#include <stdlib.h>
#include <string.h>

#include "agent/client/admin/merge.h"

/* Adds a histogram of times place by place. False: no memory. */
static bool add_times(uint64_t **into, size_t *n, const uint64_t *from, size_t n_from)
{
    if (n_from > *n) {
        uint64_t *grown = realloc(*into, n_from * sizeof *grown);
        if (!grown)
            return false;
        memset(grown + *n, 0, (n_from - *n) * sizeof *grown);
        *into = grown;
        *n = n_from;
    }
    for (size_t i = 0; i < n_from; i++)
        (*into)[i] += from[i];
    return true;
}

static bool add_command(Replay__CommandInfo *into, const Replay__CommandInfo *from)
{
    into->calls += from->calls;
    into->errors += from->errors;
    into->total_ns += from->total_ns;
    into->max_ns = from->max_ns > into->max_ns ? from->max_ns : into->max_ns;
    return add_times(&into->times, &into->n_times, from->times, from->n_times) &&
           add_times(&into->wait_times, &into->n_wait_times, from->wait_times, from->n_wait_times);
}

/* A command that the shards before have not been asked for yet is new in the list. */
static bool add_commands(Replay__ServerInfo *into, const Replay__CommandInfo *from)
{
    for (size_t i = 0; i < into->n_commands; i++)
        if (strcmp(into->commands[i]->name, from->name) == 0)
            return add_command(into->commands[i], from);
    return merge_append_copy((void ***)&into->commands, &into->n_commands, &from->base);
}

bool merge_add_server(Replay__ServerInfo *into, const Replay__ServerInfo *from)
{
    into->memory_bytes += from->memory_bytes;
    into->memory_limit += from->memory_limit;
    into->chunk_count += from->chunk_count;
    into->chunk_bytes += from->chunk_bytes;
    into->raw_bytes += from->raw_bytes;
    into->granted_bytes += from->granted_bytes;
    into->session_count += from->session_count;
    into->waiter_count += from->waiter_count;
    into->messages_in += from->messages_in;
    into->messages_bad += from->messages_bad;
    into->replies_dropped += from->replies_dropped;
    if (from->longest_stretch_ns > into->longest_stretch_ns)
        into->longest_stretch_ns = from->longest_stretch_ns;
    bool ok = add_times(&into->insert_times, &into->n_insert_times, from->insert_times, from->n_insert_times) &&
              add_times(&into->insert_wait_times, &into->n_insert_wait_times, from->insert_wait_times,
                        from->n_insert_wait_times) &&
              add_times(&into->journal_wait_times, &into->n_journal_wait_times, from->journal_wait_times,
                        from->n_journal_wait_times);
    for (size_t i = 0; i < from->n_commands && ok; i++)
        ok = add_commands(into, from->commands[i]);
    return ok;
}

bool merge_add_disk(Replay__DiskInfo *into, const Replay__DiskInfo *from, uint32_t shard)
{
    into->segments += from->segments;
    into->bytes += from->bytes;
    into->journal_bytes += from->journal_bytes;
    into->backlog_bytes += from->backlog_bytes;
    into->spilled_chunks += from->spilled_chunks;
    into->spilled_bytes += from->spilled_bytes;
    into->fetched_chunks += from->fetched_chunks;
    into->waiting_replies += from->waiting_replies;
    /* The oldest checkpoint says from when on all is on disk, and the slowest one when that is so again. */
    if (from->checkpoint < into->checkpoint)
        into->checkpoint = from->checkpoint;
    if (from->checkpoint_age_ns > into->checkpoint_age_ns)
        into->checkpoint_age_ns = from->checkpoint_age_ns;
    if (from->checkpoint_running &&
        (!into->checkpoint_running || from->checkpoint_progress < into->checkpoint_progress))
        into->checkpoint_progress = from->checkpoint_progress;
    into->checkpoint_running = into->checkpoint_running || from->checkpoint_running;
    return !from->trouble[0] || into->trouble[0] ||
           merge_set_text(&into->trouble, "shard %u: %s", shard, from->trouble);
}
