/* UTF-8. Protobuf requires it in string fields: implementations in other languages refuse a message with anything else. */
#ifndef PROTO_UTF8_H
#define PROTO_UTF8_H

#include <stdbool.h>
#include <stddef.h>

bool utf8_valid(const char *text, size_t size);
/* Replaces every byte that is not part of a valid sequence by '?'. */
void utf8_clean(char *text, size_t size);

#endif
