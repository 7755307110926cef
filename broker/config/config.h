/* The broker's configuration: plain structs that broker_schema fills (proto/config/schema.h). docs/CONFIG.md is printed from
 * the same rows.
 *
 * This room owns the keys, their defaults and the checks of a file. It may use the selectors, the limiter and the extensions,
 * whose options it tries out. To add a key: a member here, a row in config.c, a line in docs/CONFIG.md. */
#pragma once

#include "broker/select/limiter.h"
#include "proto/base/dtype.h"
#include "proto/config/schema.h"
#include "proto/keys/allow.h"
#include "replay/plugin.h"
#include "replay/types.h"

/* Words of the key journal in place of a time. */
enum { JOURNAL_OFF = -1, JOURNAL_NEVER = -2 };

/* What happens to a group that lacks members at its deadline. */
enum group_incomplete { GROUP_DROP, GROUP_DELIVER };

enum security_mode { SECURITY_AUTO, SECURITY_NONE, SECURITY_CURVE };

struct table_config {
    char *name;
    int64_t max_size;
    int64_t max_bytes; /* 0: no limit */
    int64_t max_times_sampled;
    bool soft_capacity;
    int64_t max_lag;        /* < 0: items never become too old */
    int64_t max_deliveries; /* 0: no bound */
    char *dead_table;       /* empty: none */
    char *policy_slot;
    int64_t group_size;        /* items of a group; 0: the table has no groups */
    int64_t group_deadline_ns; /* from the first member on */
    int32_t group_incomplete;  /* enum group_incomplete: what happens then */
    struct schema_kind sampler, remover;
    struct schema_kind limiter_options;
    struct limiter_config limiter; /* not a key: what limiter_options say. config_limiter adds the size */
    struct schema_list signature;  /* rp_option: name and "[dtype, steps, ...]", for config_field */
    struct schema_list extensions; /* struct schema_kind */
    char *metadata;
};

/* Most bytes of a table's metadata: it is in every InfoReply, and at the beginning of every file. For all tables together the
 * size of the configuration is the limit. */
#define CONFIG_METADATA_MOST 65536u

/* Most shards: a key has 8 bits for the number of its shard. */
#define CONFIG_MAX_SHARDS 255
/* Most items of a sample: picking them takes well under 2 ms in a table of any size. */
#define CONFIG_MAX_BATCH 4096u

struct broker_config {
    char *service, *ingest, *events;
    char *advertise; /* host under which other machines reach the broker; empty: as bound */
    char *http;      /* HOST:PORT of metrics; "": none are served */
    int64_t io_threads;
    int64_t memory_limit;
    bool shared_memory;
    int64_t max_message_bytes;
    int64_t peer_backlog_bytes;
    int64_t expiry_ns;
    int64_t seed;
    int32_t log_level;
    char *log_file;
    char *folder;        /* of journal, checkpoints and cold chunks; empty: nothing is kept on disk */
    int64_t journal_ns;  /* between two syncs of the journal; 0: before each message to a client; or JOURNAL_... */
    int64_t journal_max; /* bytes of journal after which a checkpoint is made */
    int64_t checkpoint_every_ns; /* 0: only on request, not even at the end */
    int64_t checkpoint_keep;     /* 0, without a journal: none are made */
    char *checkpoint_load;       /* newest, drop_tables, salvage, none, or a number */
    int64_t storage_memory;      /* 0: all data stays in memory */
    int64_t storage_disk;
    int32_t security_mode; /* enum security_mode */
    char *keys_dir;        /* of the keys that are let in */
    struct schema_list quota_options;
    struct quota quota; /* not a key: what quota_options say, for config_quota */
    struct schema_list
        shards;    /* char *: service endpoints; empty strings: processes of one broker. One: it is alone; none: auto */
    int64_t shard; /* number of this broker among them; -1: it is none of them */
    bool prompt;   /* not a key: confirm items at once, for a run in one process that waits for each of its effects */
    uint64_t settings;          /* hash of what all shards must have in common; 0: it is alone */
    struct schema_list plugins; /* char * */
    struct schema_list tables;  /* struct table_config */
};

extern const struct schema broker_schema;
extern const struct schema_alias broker_aliases[];
/* The schema's check with config_check_memory, for `--check`: a broker that is short of memory runs nevertheless. */
void config_check_strictly(void *root, struct schema_report *report);

/* The configuration without -c: one prioritized table named "replay". */
extern const char broker_default_yaml[];

/* The limiter of a table as limiter_init takes it: a queue or a stack holds max_size items. */
struct limiter_config config_limiter(const struct table_config *table);
/* Reads a field of a signature. False: its dtype or a dimension is wrong. */
bool config_field(const rp_option *option, struct field_type *out);
/* Returns the folder of journal, checkpoints and spilled chunks. NULL: nothing is kept on disk. */
const char *config_folder(const struct broker_config *config);
/* True if every effect is recorded. */
bool config_has_journal(const struct broker_config *config);
/* True if checkpoints are made: some are to be kept, or there is a journal, which they keep short. */
bool config_makes_checkpoints(const struct broker_config *config);
/* True if an endpoint, of this broker or of a listed shard, or `http` can be reached from other machines. */
bool config_is_open(const struct broker_config *config);
/* RP_FAILED_PRECONDITION: clients need keys, and there is no folder of keys. A run's file may leave it out: the launcher makes
 * one. */
rp_status config_check_keys(const struct broker_config *config, rp_error *err);
/* True if clients need keys. */
bool config_uses_curve(const struct broker_config *config);
/* Interval at which a session must send a heartbeat: it takes thirty lost ones to end it. */
#define CONFIG_HEARTBEATS 30
/* How long an ended session can be resumed, and picks of a lost client are kept, in units of session.expiry. */
#define CONFIG_TOMBSTONE 20
/* Returns the part of memory_limit for data in flight: an eighth, at most 1 GiB. The rest is for tables. */
int64_t config_ingest_budget(const struct broker_config *config);
/* Returns the limits of a key that has none of its own, with those filled in that are shares of others. */
struct quota config_quota(const struct broker_config *config);

/* The file describes one logical broker. Returns the number of its shards, at least 1. */
uint32_t config_shards(const struct broker_config *config);
/* Returns the service endpoint of a shard. NULL: the file says only how many there are. */
const char *config_shard_endpoint(const struct broker_config *config, uint32_t shard);
/* Turns the settings of the logical broker into those of its shard: its part of sizes and limiters, its endpoints, its folders.
 * A broker that is alone stays as it is. Once, before the broker is made. */
rp_status config_become_shard(struct broker_config *config, rp_error *err);
/* RP_FAILED_PRECONDITION: the tables in the folder of the logical broker (NULL: there is none) were written by another
 * number of shards, and would be left behind. One of several shards may find fewer: the others have yet to begin. */
rp_status config_check_folder(const struct broker_config *config, const char *folder, rp_error *err);
/* Makes the folders of all shards in the folder (NULL: there is none), before any of them starts. Otherwise a first start that fails
 * halfway would look like that of fewer shards. A shard whose folder cannot be made says so itself. */
void config_make_parts(const struct broker_config *config, const char *folder);
/* Fills the members that are no keys: limiters and quota. broker_schema does so, too. */
void config_derive(struct broker_config *config, struct schema_report *report);
/* Reports what shards cannot do. */
void config_check_shards(const struct broker_config *config, struct schema_report *report);
/* True if shards can divide the table's sampler: it has a mass, or the table is a queue, of which each shard has a part. */
bool config_sampler_divides(const struct table_config *table, const rp_selector_ops *sampler);
/* The sentence about a sampler, whose name it takes, that shards cannot use. */
#define CONFIG_NO_MASS                                                                                                 \
    "the sampler '%s' cannot be used over shards: it has no mass by which a batch could be divided among them. Use "   \
    "uniform or prioritized, or fifo with the limiter queue, or with lag and max_times_sampled: 1"

/* Returns the bytes of an item by the table's signature. Each field counts once; "next_x" beside an "x" does not count, since it
 * is the "x" of another item. 0: unknown. */
double config_item_bytes(const struct table_config *table);
/* Bytes of an item's record, and of its key if keys are consecutive. */
#define CONFIG_RECORD_BYTES 64u
#define CONFIG_KEY_BYTES 6u
#define CONFIG_WINDOW_BYTES 8u /* with max_lag */
#define CONFIG_GROUP_BYTES 32u /* with groups */
/* Returns the bytes that an item takes besides its data: record, key, and its slots in built-in selectors. */
double config_item_overhead(const struct table_config *table);
/* Returns the bytes of the full table if its items have item_bytes of data each; 0: at least, since that is not known. */
double config_table_bytes(const struct table_config *table, double item_bytes);
/* Reports tables that cannot reach their max_size, because memory_limit is too small for all tables. item_bytes: bytes of data per
 * item of each table, 0 if unknown; NULL: as the signatures say. prefix: put before keys in the report. */
void config_check_memory(const struct broker_config *config, const double *item_bytes, const char *prefix,
                         struct schema_report *report);
