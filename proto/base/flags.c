#include "proto/base/flags.h"

#include <stdio.h>

void flags_print(const struct flag *flags, size_t n, uint32_t who, int width)
{
    for (size_t i = 0; i < n; i++) {
        char left[64];
        if (!(flags[i].who & who))
            continue;
        int used = flags[i].key < 256 ? snprintf(left, sizeof left, "-%c, ", flags[i].key)
                                      : snprintf(left, sizeof left, "    ");
        snprintf(left + used, sizeof left - (size_t)used, "--%s %s", flags[i].name,
                 flags[i].argument ? flags[i].argument : "");
        printf("  %-*s %s\n", width, left, flags[i].help);
    }
}

void flags_names(const struct flag *flags, size_t n, uint32_t who, struct option *out)
{
    for (size_t i = 0; i < n; i++)
        if (flags[i].who & who)
            *out++ =
                (struct option){flags[i].name, flags[i].argument ? required_argument : no_argument, NULL, flags[i].key};
    *out = (struct option){0};
}
