#include "bench/curve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

#include "bench/children.h"
#include "bench/files.h"
#include "proto/keys/allow.h"

static struct {
    char folder[128]; /* empty: off */
    struct key broker, client;
} all;

/* The key files of the broker's folder, and the client's for libreplay. */
static rp_status write_files(rp_error *err)
{
    char path[256];
    struct allowed_key allowed = {.name = "bench", .roles = KEY_ANY, .quota = {-1, -1, -1, -1, -1}};
    memcpy(allowed.public_key, all.client.public_key, KEY_BYTES);
    snprintf(path, sizeof path, "%s/%s", all.folder, ALLOW_BROKER_KEY);
    rp_status status = key_write(path, &all.broker, true, err);
    if (status == RP_OK)
        status = allow_add(all.folder, &allowed, err);
    snprintf(path, sizeof path, "%s/bench.key", all.folder);
    if (status == RP_OK)
        status = key_write(path, &all.client, true, err);
    setenv(KEY_FILE_VARIABLE, path, 1);
    return status;
}

bool curve_init(void)
{
    rp_error err = {0};
    if (!files_folder(NULL, all.folder, sizeof all.folder))
        return false;
    rp_status status = key_make(&all.broker, "broker", &err);
    if (status == RP_OK)
        status = key_make(&all.client, "bench", &err);
    if (status == RP_OK) {
        key_add_broker(&all.client, all.broker.public_key);
        status = write_files(&err);
    }
    if (status != RP_OK)
        fprintf(stderr, "replay-bench: %s\n", err.text);
    return status == RP_OK;
}

void curve_fini(void)
{
    if (all.folder[0])
        files_remove(all.folder);
    key_wipe(&all.broker);
    key_wipe(&all.client);
    all.folder[0] = '\0';
}

const char *curve_folder(void)
{
    return all.folder[0] ? all.folder : NULL;
}

void curve_serve(void *socket)
{
    int one = 1;
    if (!all.folder[0] || !socket)
        return;
    zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, all.broker.secret_key, KEY_BYTES);
}

void curve_connect(void *socket)
{
    if (!all.folder[0] || !socket)
        return;
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, all.broker.public_key, KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, all.client.public_key, KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, all.client.secret_key, KEY_BYTES);
}
