#include "tests/support/tempdir.h"

#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

char tempdir[64];

int tempdir_enter(void **state)
{
    (void)state;
    snprintf(tempdir, sizeof tempdir, "/tmp/replay-test-XXXXXX");
    return mkdtemp(tempdir) ? 0 : -1;
}

bool tempdir_mount(const char *options)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", tempdir, "tmpfs", 0, options) == 0;
}

int tempdir_leave(void **state)
{
    (void)state;
    umount2(tempdir, MNT_DETACH);
    return system(textf("chmod -R u+w '%s' && rm -rf '%s'", tempdir, tempdir));
}

const char *file_in(const char *folder, const char *name)
{
    return textf("%s/%s", folder, name);
}

const char *tempdir_at(const char *path)
{
    return file_in(tempdir, path);
}

void file_write(const char *path, const void *bytes, size_t size, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        fail_msg("%s cannot be written", path);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

void file_put(const char *path, const char *text)
{
    file_write(path, text, strlen(text), 0666);
}

/* Reads to the end: the files of /proc have no size. */
char *file_bytes(const char *path, size_t *size)
{
    FILE *in = fopen(path, "re");
    char *text = calloc(1, 1);
    *size = 0;
    for (size_t room = 4096, n = 1; in && text && n > 0; *size += n, room *= 2) {
        char *more = realloc(text, *size + room + 1);
        assert_non_null(more);
        text = more;
        n = fread(text + *size, 1, room, in);
        text[*size + n] = '\0';
    }
    if (in)
        fclose(in);
    return lend_text(text);
}

char *file_text(const char *path)
{
    size_t size;
    return file_bytes(path, &size);
}

bool file_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

int64_t file_size(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? info.st_size : -1;
}

char **files_like(const char *pattern, uint32_t *n)
{
    static glob_t found;
    globfree(&found);
    *n = glob(pattern, 0, NULL, &found) == 0 ? (uint32_t)found.gl_pathc : 0;
    return found.gl_pathv;
}
