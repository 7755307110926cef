/* The part of the schema reader that uses libyaml's parser; not for others. */
#ifndef PROTO_SCHEMA_YAML_H
#define PROTO_SCHEMA_YAML_H

#include <sys/types.h>

#include <yaml.h>

#include "proto/config/schema_impl.h"

struct schema_place schema_yaml_place(yaml_mark_t mark);
/* Checks syntax and depth, that there is one document, and no aliases and tags. False: reported. */
bool schema_yaml_scan(struct schema_report *report, const char *text, size_t size);
bool schema_yaml_load(const char *text, size_t size, yaml_document_t *document);
/* True for "key:", "key: ~" and "key: null". */
bool schema_yaml_is_null(const yaml_node_t *node);
/* Returns "a map", "a list" or "a single value". */
const char *schema_yaml_kind(const yaml_node_t *node);
/* Returns the value of a key of a map, or NULL. */
yaml_node_t *schema_yaml_find(yaml_document_t *document, const yaml_node_t *map, const char *key);
/* Reads at most limit + 1 bytes of a file; -1: errno is set. */
ssize_t schema_yaml_slurp(const char *path, char *data, size_t limit);

/* ---- schema_override.c */
/* Applies overrides to a document whose root is a map. False: reported. Changes the file's name in the report. */
bool schema_override(yaml_document_t *document, const char *const *overrides, struct schema_report *report);

#endif
