/* The tokens of a broker with keys: files beside them, made at the first start. One reads, for Prometheus; the other also changes. */
#ifndef BROKER_HTTP_TOKEN_H
#define BROKER_HTTP_TOKEN_H

#include "proto/http/http.h"
#include "replay/error.h"

#define TOKEN_READER "http.token"
#define TOKEN_ADMIN "http.admin.token"
#define TOKEN_TEXT HTTP_TOKEN

/* Reads the token of this file in a folder of keys, or makes one. RP_PERMISSION_DENIED: others may read it. */
rp_status token_open(const char *folder, const char *file, char token[TOKEN_TEXT], rp_error *err);

#endif
