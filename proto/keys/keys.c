#include "proto/keys/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/base/error.h"
#include "proto/base/io.h"

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

rp_status key_path(const char *folder, const char *name, char out[KEY_PATH], rp_error *err)
{
    return (size_t)snprintf(out, KEY_PATH, "%s/%s", folder, name) < KEY_PATH
               ? RP_OK
               : err_set(err, RP_INVALID_ARGUMENT, "the path of the folder of keys is too long");
}

static rp_status check_access(const char *path, const struct stat *info, bool secret, rp_error *err)
{
    if (info->st_mode & (secret ? 077 : 022))
        return err_set(
            err, RP_PERMISSION_DENIED, "%s has mode %04o, so others may %s", path, (unsigned)info->st_mode & 07777,
            secret ? "read the secret in it: run chmod 600, and make a new key if others could have seen this one"
                   : "add keys to it: run chmod 600, and look at what is in it");
    if (info->st_uid != geteuid() && info->st_uid != 0 && geteuid() != 0)
        return err_set(err, RP_PERMISSION_DENIED, "%s belongs to another user", path);
    return RP_OK;
}

rp_status key_file_read(const char *path, bool secret, size_t most, char **text, rp_error *err)
{
    struct stat info;
    *text = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0)
        return err_set(err, errno == ENOENT ? RP_NOT_FOUND : RP_IO, "cannot read %s: %s", path, strerror(errno));
    rp_status status = RP_OK;
    ssize_t size = 0;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > (off_t)most)
        status = err_set(err, RP_IO, "%s is not a plain file of at most %zu bytes", path, most);
    else if ((status = check_access(path, &info, secret, err)) == RP_OK && !(*text = malloc((size_t)info.st_size + 1)))
        status = err_set(err, RP_NO_MEMORY, "no memory for %s", path);
    if (status == RP_OK && (size = io_read(file, *text, (size_t)info.st_size, IO_HERE)) < 0)
        status = err_set(err, RP_IO, "cannot read %s: %s", path, strerror(errno));
    close(file);
    if (status == RP_OK)
        (*text)[size] = '\0';
    else
        free(*text), *text = NULL;
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
    char *text;
    *out = (struct key){0};
    RP_TRY(key_file_read(path, true, FILE_BYTES, &text, err));
    size_t size = strlen(text);
    rp_status status = keys_parse(path, text, out, err);
    explicit_bzero(text, size);
    free(text);
    if (status != RP_OK)
        key_wipe(out);
    return status;
}

/* ---- writing ---- */

static void print_key(FILE *file, const void *from)
{
    const struct key *key = from;
    char public_text[KEY_TEXT], secret_text[KEY_TEXT], broker_text[KEY_TEXT];
    key_text(key->public_key, public_text);
    key_text(key->secret_key, secret_text);
    fprintf(file,
            "# A key of the replay broker. Keep it secret: who can read this file can do what the key may do.\n"
            "name %s\npublic %s\nsecret %s\n",
            key->name, public_text, secret_text);
    for (uint32_t i = 0; i < key->n_brokers; i++) {
        key_text(key->brokers[i], broker_text);
        fprintf(file, "broker %s\n", broker_text);
    }
    explicit_bzero(secret_text, sizeof secret_text);
}

/* A broker that runs as somebody else has to read the file. */
static bool keep_access(int descriptor, const char *path, bool secret)
{
    struct stat old;
    char folder[PATH_MAX];
    bool exists = stat(path, &old) == 0;
    if (exists && !secret && fchmod(descriptor, old.st_mode & 0755) != 0)
        return false;
    snprintf(folder, sizeof folder, "%s", path);
    if (geteuid() != 0 || (!exists && stat(dirname(folder), &old) != 0))
        return true;
    return fchown(descriptor, old.st_uid, old.st_gid) == 0;
}

rp_status key_file_write(const char *path, bool secret, void (*print)(FILE *file, const void *from), const void *from,
                         bool replace, rp_error *err)
{
    char temporary[PATH_MAX], buffer[FILE_BYTES];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= sizeof temporary)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the key file is too long");
    if (!replace && access(path, F_OK) == 0)
        return err_set(err, RP_ALREADY_EXISTS, "%s exists already: a key is never overwritten", path);
    int descriptor = mkostemp(temporary, O_CLOEXEC); /* of mode 0600 */
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    bool ok = file && keep_access(descriptor, path, secret);
    if (file) {
        setvbuf(file, buffer, _IOFBF, sizeof buffer); /* a buffer that can be wiped */
        print(file, from);
        ok = ok && !ferror(file) && fflush(file) == 0 && fsync(descriptor) == 0;
        ok = fclose(file) == 0 && ok;
        explicit_bzero(buffer, sizeof buffer);
    } else if (descriptor >= 0) {
        close(descriptor);
    }
    ok = ok && (replace ? rename(temporary, path) : link(temporary, path)) == 0;
    int error = errno;
    if (descriptor >= 0 && (!ok || !replace))
        unlink(temporary);
    if (ok)
        return RP_OK;
    return err_set(err, error == EEXIST ? RP_ALREADY_EXISTS : RP_IO, "cannot write %s: %s", path, strerror(error));
}

rp_status key_write(const char *path, const struct key *key, bool replace, rp_error *err)
{
    return key_file_write(path, true, print_key, key, replace, err);
}
