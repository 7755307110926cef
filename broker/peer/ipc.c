#include "broker/peer/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Milliseconds to wait for another process that binds in the same folder. A process that holds the lock for longer is no broker:
 * then the check alone must do. */
#define LOCK_TRIES 1000

/* Locks the folder of the path: of two brokers that start together, one checks after the other has bound. */
static int lock_folder(const char *path)
{
    char folder[sizeof(struct sockaddr_un)];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    snprintf(slash ? slash + 1 : folder, slash ? sizeof folder - (size_t)(slash + 1 - folder) : sizeof folder, ".");
    int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; lock >= 0 && i < LOCK_TRIES && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; i++)
        usleep(1000);
    return lock;
}

static rp_status check_path(const struct sockaddr_un *address, rp_error *err)
{
    struct stat file;
    if (lstat(address->sun_path, &file) != 0)
        return RP_OK;
    if (!S_ISSOCK(file.st_mode))
        return err_set(err, RP_IO, "cannot bind ipc://%s: a file that is not a socket is there", address->sun_path);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (probe < 0)
        return err_set(err, RP_IO, "cannot bind ipc://%s: %s", address->sun_path, strerror(errno));
    int error = connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    close(probe);
    if (error == ECONNREFUSED || error == ENOENT)
        return RP_OK;
    if (error == 0 || error == EAGAIN || error == EINPROGRESS)
        return err_set(err, RP_IO,
                       "cannot bind ipc://%s: another process listens there, most likely a broker. Stop it, or use "
                       "another path",
                       address->sun_path);
    return err_set(err, RP_IO, "cannot find out whether a process listens at ipc://%s: %s", address->sun_path,
                   strerror(error));
}

rp_status ipc_claim(const char *endpoint, int *lock, rp_error *err)
{
    static const char prefix[] = "ipc://";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *lock = -1;
    if (strncmp(endpoint, prefix, sizeof prefix - 1) != 0)
        return RP_OK;
    const char *path = endpoint + sizeof prefix - 1;
    /* libzmq chooses the name; or it is abstract, which the kernel guards; or libzmq refuses it. */
    if (path[0] == '*' || path[0] == '@' || path[0] == '\0' || strlen(path) >= sizeof address.sun_path)
        return RP_OK;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    *lock = lock_folder(path);
    return check_path(&address, err);
}

void ipc_release(int lock)
{
    if (lock >= 0)
        close(lock);
}
