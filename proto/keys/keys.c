#include "proto/keys/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/base/error.h"

#define FILE_BYTES 4096u

bool key_name_is_good(const char *name)
{
    size_t length = strlen(name);
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return length > 0 && length < KEY_NAME && strspn(name, good) == length && name[0] != '-' && name[0] != '.';
}

void key_text(const uint8_t key[KEY_BYTES], char out[KEY_TEXT])
{
    zmq_z85_encode(out, key, KEY_BYTES);
}

bool key_parse(const char *text, uint8_t out[KEY_BYTES])
{
    return strlen(text) == KEY_TEXT - 1 && zmq_z85_decode(out, text) != NULL;
}

rp_status key_make(struct key *out, const char *name, rp_error *err)
{
    char public_text[KEY_TEXT], secret_text[KEY_TEXT];
    *out = (struct key){0};
    if (!key_name_is_good(name))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "'%.80s' cannot be the name of a key: use 1 to %u letters, digits, '.', '-' and '_'", name,
                       KEY_NAME - 1);
    do { /* a public key that begins with '-' would look like an option on a command line */
        if (zmq_curve_keypair(public_text, secret_text) != 0)
            return err_set(err, RP_UNSUPPORTED, "this libzmq was built without CURVE: %s", zmq_strerror(errno));
    } while (public_text[0] == '-');
    snprintf(out->name, sizeof out->name, "%s", name);
    zmq_z85_decode(out->public_key, public_text);
    zmq_z85_decode(out->secret_key, secret_text);
    explicit_bzero(secret_text, sizeof secret_text);
    return RP_OK;
}

void key_wipe(struct key *self)
{
    explicit_bzero(self->secret_key, sizeof self->secret_key);
}

void key_add_broker(struct key *self, const uint8_t public_key[KEY_BYTES])
{
    uint32_t at = 0;
    while (at < self->n_brokers && memcmp(self->brokers[at], public_key, KEY_BYTES) != 0)
        at++;
    if (at == self->n_brokers && self->n_brokers < KEY_BROKERS)
        self->n_brokers++;
    if (at == KEY_BROKERS)
        at--;
    memmove(self->brokers[1], self->brokers[0], at * KEY_BYTES);
    memcpy(self->brokers[0], public_key, KEY_BYTES);
}

/* ---- reading ---- */

/* Opens the file and reads all of it, if nobody else may. */
static rp_status read_private(const char *path, char text[FILE_BYTES], rp_error *err)
{
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    rp_status status = RP_OK;
    if (file < 0)
        return err_set(err, errno == ENOENT ? RP_NOT_FOUND : RP_IO, "cannot read the key file %s: %s", path,
                       strerror(errno));
    ssize_t size = -1;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode))
        status = err_set(err, RP_IO, "the key file %s is not a plain file", path);
    else if (info.st_mode & 077)
        status = err_set(err, RP_PERMISSION_DENIED,
                         "the key file %s has mode %04o, so others may read the secret in it: run chmod 600, and make "
                         "a new key if others could have seen this one",
                         path, (unsigned)info.st_mode & 07777);
    else if (info.st_uid != geteuid() && geteuid() != 0)
        status = err_set(err, RP_PERMISSION_DENIED, "the key file %s belongs to another user", path);
    else if ((size = read(file, text, FILE_BYTES - 1)) < 0 || size == FILE_BYTES - 1)
        status = err_set(err, RP_IO, "cannot read the key file %s: %s", path, size < 0 ? strerror(errno) : "too long");
    if (size >= 0)
        text[size] = '\0';
    close(file);
    return status;
}

/* Takes one line of a key file. False: it is wrong. */
static bool take_line(struct key *out, const char *word, const char *value, uint32_t *seen)
{
    enum { NAME = 1, PUBLIC = 2, SECRET = 4 };
    uint8_t broker[KEY_BYTES];
    uint32_t bit = strcmp(word, "name") == 0 ? NAME : strcmp(word, "public") == 0 ? PUBLIC : SECRET;
    if (strcmp(word, "broker") == 0) {
        if (out->n_brokers == KEY_BROKERS || !key_parse(value, broker))
            return false;
        memcpy(out->brokers[out->n_brokers++], broker, KEY_BYTES);
        return true;
    }
    if ((bit == SECRET && strcmp(word, "secret") != 0) || *seen & bit)
        return false;
    *seen |= bit;
    if (bit == NAME) {
        snprintf(out->name, sizeof out->name, "%s", value);
        return key_name_is_good(value);
    }
    return key_parse(value, bit == PUBLIC ? out->public_key : out->secret_key);
}

/* True if the two halves belong together: a wrong pair would only be noticed as a handshake that never ends. */
static bool is_pair(const struct key *key)
{
    char secret_text[KEY_TEXT], public_text[KEY_TEXT];
    uint8_t public_key[KEY_BYTES];
    key_text(key->secret_key, secret_text);
    bool ok = zmq_curve_public(public_text, secret_text) == 0 && key_parse(public_text, public_key) &&
              memcmp(public_key, key->public_key, KEY_BYTES) == 0;
    explicit_bzero(secret_text, sizeof secret_text);
    return ok;
}

static rp_status keys_parse(const char *path, char *text, struct key *out, rp_error *err)
{
    uint32_t number = 0, seen = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        char *save = NULL, *word = strtok_r(line, " \t\r", &save),
             *value = word ? strtok_r(NULL, " \t\r", &save) : NULL;
        number++;
        if (!word || word[0] == '#')
            continue;
        if (!value || strtok_r(NULL, " \t\r", &save) || !take_line(out, word, value, &seen))
            return err_set(err, RP_INVALID_ARGUMENT,
                           "line %u of the key file %s is wrong: the lines are 'name NAME', 'public KEY', 'secret KEY' "
                           "once each, and 'broker KEY' up to %u times. replay-ctl key new makes such a file",
                           number, path, KEY_BROKERS);
    }
    if (seen != 7)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the key file %s lacks its name, public or secret line: replay-ctl key new makes a new one",
                       path);
    if (!is_pair(out))
        return err_set(err, RP_INVALID_ARGUMENT, "the public and the secret key in %s do not belong together", path);
    return RP_OK;
}

rp_status key_read(const char *path, struct key *out, rp_error *err)
{
    char text[FILE_BYTES];
    *out = (struct key){0};
    rp_status status = read_private(path, text, err);
    if (status == RP_OK)
        status = keys_parse(path, text, out, err);
    explicit_bzero(text, sizeof text);
    if (status != RP_OK)
        key_wipe(out);
    return status;
}

/* ---- writing ---- */

static bool write_lines(FILE *file, const struct key *key)
{
    char public_text[KEY_TEXT], secret_text[KEY_TEXT], broker_text[KEY_TEXT];
    key_text(key->public_key, public_text);
    key_text(key->secret_key, secret_text);
    bool ok =
        fprintf(file,
                "# A key of the replay broker. Keep it secret: who can read this file can do what the key may do.\n"
                "name %s\npublic %s\nsecret %s\n",
                key->name, public_text, secret_text) > 0;
    for (uint32_t i = 0; ok && i < key->n_brokers; i++) {
        key_text(key->brokers[i], broker_text);
        ok = fprintf(file, "broker %s\n", broker_text) > 0;
    }
    explicit_bzero(secret_text, sizeof secret_text);
    return ok;
}

/* Writes a temporary file beside the path and gives it the name, so that no reader sees half of it. */
rp_status key_write(const char *path, const struct key *key, bool replace, rp_error *err)
{
    char temporary[4096], buffer[FILE_BYTES];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid()) >= sizeof temporary)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the key file is too long");
    if (!replace && access(path, F_OK) == 0)
        return err_set(err, RP_ALREADY_EXISTS, "%s exists already: a key is never overwritten", path);
    unlink(temporary);
    int descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!file) {
        int error = errno;
        if (descriptor >= 0)
            close(descriptor);
        return err_set(err, RP_IO, "cannot write the key file %s: %s", path, strerror(error));
    }
    setvbuf(file, buffer, _IOFBF, sizeof buffer); /* a buffer that can be wiped */
    struct stat old;                              /* root may change a file for its owner, who has to read it */
    bool ok = !replace || geteuid() != 0 || stat(path, &old) != 0 || fchown(descriptor, old.st_uid, old.st_gid) == 0;
    ok = ok && write_lines(file, key) && fflush(file) == 0 && fsync(descriptor) == 0;
    ok = fclose(file) == 0 && ok;
    explicit_bzero(buffer, sizeof buffer);
    ok = ok && (replace ? rename(temporary, path) : link(temporary, path)) == 0;
    int error = errno;
    if (!ok || !replace)
        unlink(temporary);
    if (ok)
        return RP_OK;
    return err_set(err, error == EEXIST ? RP_ALREADY_EXISTS : RP_IO, "cannot write the key file %s: %s", path,
                   strerror(error));
}
