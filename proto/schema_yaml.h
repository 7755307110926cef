/* The part of the schema reader that knows libyaml's parser. Not for others. */
#ifndef PROTO_SCHEMA_YAML_H
#define PROTO_SCHEMA_YAML_H

#include <sys/types.h>

#include <yaml.h>

#include "proto/schema_impl.h"

struct schema_place schema_yaml_place(yaml_mark_t mark);
/* Syntax, depth, one document only, no aliases, no tags. False: reported. */
bool schema_yaml_scan(struct schema_report *report, const char *text, size_t size);
bool schema_yaml_load(const char *text, size_t size, yaml_document_t *document);
/* Reads at most limit + 1 bytes of a file. -1 with errno set. */
ssize_t schema_yaml_slurp(const char *path, char *data, size_t limit);

#endif
