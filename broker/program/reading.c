/* Reads the configuration that a command line names, and answers mistakes about where it stands. */
#include "broker/program/reading.h"

#include <stdio.h>
#include <string.h>

#include "proto/config/schema.h"

static struct schema_source source_of(const struct reading *self)
{
    return (struct schema_source){.file = self->config,
                                  .name = "(embedded)",
                                  .text = broker_default_yaml,
                                  .section = self->section,
                                  .overrides = (const char *const *)self->overrides.texts};
}

/* Reads a configuration for a question about it, without a word. */
static bool try_config(const struct schema_source *source, struct broker_config *config)
{
    struct schema_report *report = schema_report_new();
    bool ok = report && schema_read(&broker_schema, source, config, report);
    schema_report_destroy(&report);
    return ok;
}

/* The file of a whole run has the broker's keys in a section. */
static void hint_section(const struct reading *self)
{
    struct schema_source source = source_of(self);
    struct broker_config config = {0};
    source.section = "broker";
    source.overrides = NULL;
    if (self->config && !self->section && try_config(&source, &config)) {
        fprintf(stderr, "replay-broker: %s is the file of a whole run: add --section broker\n", self->config);
        schema_free(&broker_schema, &config);
    }
    for (uint32_t i = 0; i < self->overrides.n && !self->section; i++)
        if (strncmp(self->overrides.texts[i], "broker.", 7) == 0)
            fprintf(stderr, "replay-broker: without --section a key has no 'broker.' before it: --set %s\n",
                    self->overrides.texts[i] + 7);
}

/* True if --shards would replace a list of brokers that run by themselves. */
static bool replaces_list(const struct reading *self)
{
    struct schema_source source = source_of(self);
    struct broker_config config = {0};
    source.overrides = NULL;
    if (!self->shards || !try_config(&source, &config))
        return false;
    uint32_t n = config_shards(&config);
    bool listed = config_shard_endpoint(&config, 0) != NULL;
    schema_free(&broker_schema, &config);
    if (listed)
        cli_usage("replay-broker",
                  "--shards %d: %s lists %u shards that are brokers of their own: leave --shards out and say which of "
                  "them this is (--set shard=0), or take the list out of the file",
                  (int)self->shards, self->config, n);
    return listed;
}

bool reading_read(const struct reading *self, struct broker_config *config)
{
    if (replaces_list(self))
        return false;
    struct schema_report *report = schema_report_new();
    const struct schema_source source = source_of(self);
    bool ok = report && schema_read(self->check ? &broker_schema_strict : &broker_schema, &source, config, report);
    if (!ok && report) {
        fputs(schema_report_text(report), stderr);
        fprintf(stderr, "replay-broker: %u mistake%s in the configuration; nothing was started\n",
                schema_report_count(report), schema_report_count(report) == 1 ? "" : "s");
        hint_section(self);
    }
    schema_report_destroy(&report);
    return ok;
}

void reading_print(const struct reading *self, const struct broker_config *config)
{
    uint32_t tables = config->tables.count, shards = config_shards(config);
    printf("%s: no mistakes; %u table%s", self->config ? self->config : "(embedded)", tables, tables == 1 ? "" : "s");
    if (shards > 1)
        printf(", %u shards", shards);
    puts(config->shards.count == 0 ? ", 1 shard (auto is measured by replay-launch only)" : "");
}
