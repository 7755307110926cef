/* The token of a broker with keys: a file beside them, made at the first start. */
#ifndef BROKER_HTTP_TOKEN_H
#define BROKER_HTTP_TOKEN_H

#include "proto/http/http.h"
#include "replay/error.h"

#define TOKEN_FILE "http.token"
#define TOKEN_TEXT HTTP_TOKEN

/* Reads the token of a folder of keys, or makes one. RP_PERMISSION_DENIED: others may read it. */
rp_status token_open(const char *folder, char token[TOKEN_TEXT], rp_error *err);

#endif
