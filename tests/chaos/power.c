/* What would survive a failure of power: a library to be loaded in front of the broker's (LD_PRELOAD). It writes down,
 * for each fsync and fdatasync that succeeded, what was asked for: "F device inode size" of a file; "D", then "N inode
 * name" for every entry, and "E" of a folder; and "T device inode size" for a file that was cut. tests/chaos then takes
 * away what was never synced. The file to write to is named by RP_POWER_LOG; without it nothing is written. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOWEST_US 4000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

typedef int sync_fn(int descriptor);
typedef int truncate_fn(int descriptor, off_t length);

static void note(const char *text, size_t size)
{
    static int log = -1;
    const char *path = getenv("RP_POWER_LOG");
    if (!path)
        return;
    pthread_mutex_lock(&mutex);
    if (log < 0)
        log = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (write(log, text, size) != (ssize_t)size)
        abort();
    pthread_mutex_unlock(&mutex);
}

static size_t list(int folder, char *out, size_t room)
{
    size_t used = (size_t)snprintf(out, room, "D\n");
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy >= 0 ? fdopendir(copy) : NULL;
    for (struct dirent *entry = entries ? readdir(entries) : NULL; entry && used + 600 < room; entry = readdir(entries))
        used +=
            (size_t)snprintf(out + used, room - used, "N %llu %s\n", (unsigned long long)entry->d_ino, entry->d_name);
    if (entries)
        closedir(entries);
    return used + (size_t)snprintf(out + used, room - used, "E\n");
}

/* What is there when the call begins is what it promises. */
static int sync_and_note(const char *name, int descriptor)
{
    struct stat state = {0};
    size_t room = 1 << 18, size = 0;
    char *text = malloc(room);
    if (!text)
        abort();
    if (fstat(descriptor, &state) == 0 && S_ISREG(state.st_mode))
        size = (size_t)snprintf(text, room, "F %llu %llu %lld\n", (unsigned long long)state.st_dev,
                                (unsigned long long)state.st_ino, (long long)state.st_size);
    else if (S_ISDIR(state.st_mode))
        size = list(descriptor, text, room);
    if (getenv("RP_POWER_LOG"))
        usleep((useconds_t)(random() % SLOWEST_US)); /* as a disk would: there is more to lose */
    int result = ((sync_fn *)dlsym(RTLD_NEXT, name))(descriptor);
    if (result == 0 && size)
        note(text, size);
    free(text);
    return result;
}

__attribute__((visibility("default"))) int fsync(int descriptor)
{
    return sync_and_note("fsync", descriptor);
}

__attribute__((visibility("default"))) int fdatasync(int descriptor)
{
    return sync_and_note("fdatasync", descriptor);
}

/* What is cut off and written again is not what was synced. */
__attribute__((visibility("default"))) int ftruncate(int descriptor, off_t length)
{
    int result = ((truncate_fn *)dlsym(RTLD_NEXT, "ftruncate"))(descriptor, length);
    struct stat state;
    char text[100];
    if (result == 0 && fstat(descriptor, &state) == 0)
        note(text, (size_t)snprintf(text, sizeof text, "T %llu %llu %lld\n", (unsigned long long)state.st_dev,
                                    (unsigned long long)state.st_ino, (long long)length));
    return result;
}
