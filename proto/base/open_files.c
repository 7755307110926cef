#include "proto/base/open_files.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/base/error.h"

#define CHECK_MOST 512u

rp_status open_files_check(uint32_t n, const char *who, const char *more, rp_error *err)
{
    int files[CHECK_MOST];
    uint32_t got = 0;
    n = n < CHECK_MOST ? n : CHECK_MOST;
    while (got < n && (files[got] = eventfd(0, EFD_CLOEXEC)) >= 0)
        got++;
    int error = errno;
    for (uint32_t i = 0; i < got; i++)
        close(files[i]);
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (got == n)
        return RP_OK;
    return err_set(
        err, RP_RESOURCE_EXHAUSTED,
        "this process can open %u more files of %llu (%s), and %s needs at least %u, and %s: raise 'ulimit -n' "
        "(systemd: LimitNOFILE), or close some",
        got, (unsigned long long)limit.rlim_cur, strerror(error), who, n, more);
}
