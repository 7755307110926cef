/* Reads the file of a configuration, and makes a first pass over its YAML that refuses what schema_read.c does not handle. */
#include "proto/config/schema_yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct schema_place schema_yaml_place(yaml_mark_t mark)
{
    return (struct schema_place){(uint32_t)mark.line + 1, (uint32_t)mark.column + 1};
}

const char *schema_yaml_kind(const yaml_node_t *node)
{
    return node->type == YAML_MAPPING_NODE ? "a map" : node->type == YAML_SEQUENCE_NODE ? "a list" : "a single value";
}

bool schema_yaml_is_null(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE || node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    const char *text = (const char *)node->data.scalar.value;
    return text[0] == '\0' || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0;
}

yaml_node_t *schema_yaml_find(yaml_document_t *document, const yaml_node_t *map, const char *key)
{
    for (const yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name = yaml_document_get_node(document, pair->key);
        if (name->type == YAML_SCALAR_NODE && strcmp((const char *)name->data.scalar.value, key) == 0)
            return yaml_document_get_node(document, pair->value);
    }
    return NULL;
}

bool schema_yaml_load(const char *text, size_t size, yaml_document_t *document)
{
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return false;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    bool ok = yaml_parser_load(&parser, document) != 0;
    yaml_parser_delete(&parser);
    return ok;
}

/* Walks the events before the document is built: bounds the depth, and refuses constructs by which one place of the file stands
 * for several values. */
static bool scan_event(struct schema_report *report, const yaml_event_t *event, uint32_t *depth, uint32_t *documents)
{
    struct schema_place place = schema_yaml_place(event->start_mark);
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        schema_report_at(report, place, "", "aliases (*%.64s) are not supported: write the value again",
                         (const char *)event->data.alias.anchor);
        return true;
    case YAML_SCALAR_EVENT:
        if (event->data.scalar.tag)
            schema_report_at(report, place, "", "tags (%.64s) are not supported", (const char *)event->data.scalar.tag);
        return true;
    case YAML_DOCUMENT_START_EVENT:
        if (++*documents == 2) {
            schema_report_at(report, place, "", "only one YAML document is allowed in a file");
            return false;
        }
        return true;
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        if (++*depth > SCHEMA_MAX_DEPTH) {
            schema_report_at(report, place, "", "is nested more than %u levels deep", SCHEMA_MAX_DEPTH);
            return false;
        }
        return true;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        --*depth;
        return true;
    default:
        return true;
    }
}

static void report_syntax(struct schema_report *report, const yaml_parser_t *parser)
{
    const char *what = parser->problem ? parser->problem : "it cannot be read";
    if (parser->error == YAML_READER_ERROR) {
        schema_report_at(report, schema_yaml_place(parser->mark), "", "not valid YAML: %s (byte %zu)", what,
                         parser->problem_offset);
    } else if (parser->context) {
        schema_report_at(report, schema_yaml_place(parser->problem_mark), "", "not valid YAML: %s %s", parser->context,
                         what);
    } else {
        schema_report_at(report, schema_yaml_place(parser->problem_mark), "", "not valid YAML: %s", what);
    }
}

bool schema_yaml_scan(struct schema_report *report, const char *text, size_t size)
{
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        schema_report_at(report, (struct schema_place){0, 0}, "", "out of memory");
        return false;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    uint32_t before = schema_report_count(report), depth = 0, documents = 0;
    for (bool more = true; more;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            report_syntax(report, &parser);
            break;
        }
        more = event.type != YAML_STREAM_END_EVENT && scan_event(report, &event, &depth, &documents);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return schema_report_count(report) == before;
}

ssize_t schema_yaml_slurp(const char *path, char *data, size_t limit)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t size = 0;
    while (size <= limit) {
        ssize_t n = read(fd, data + size, limit + 1 - size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int error = errno;
            close(fd);
            errno = error;
            return -1;
        }
        if (n == 0)
            break;
        size += (size_t)n;
    }
    close(fd);
    return (ssize_t)size;
}
