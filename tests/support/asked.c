#include "tests/support/asked.h"

rp_info *asked_info(rp_client *client, const char *table)
{
    rp_info *info = NULL;
    if (rp_admin_info(client, table, 0, WAIT, &info, &err) != RP_OK)
        fail_msg("info: %s", err.text);
    return info;
}

uint64_t asked_table(rp_client *client, const char *table, const char *path)
{
    SCOPED(rp_info) info = asked_info(client, table);
    assert_int_equal(rp_info_count(info, "tables"), 1);
    return rp_info_u64(rp_info_at(info, "tables", 0), path);
}

uint64_t asked_number(rp_client *client, const char *path)
{
    SCOPED(rp_info) info = asked_info(client, NULL);
    return (uint64_t)rp_info_real(info, path);
}

uint32_t asked_waits(rp_client *client, const char *kind, char *text, size_t size)
{
    SCOPED(rp_info) waits = NULL;
    uint32_t n = 0;
    if (rp_admin_why(client, WAIT, &waits, &err) != RP_OK)
        fail_msg("why: %s", err.text);
    for (uint32_t i = 0; i < rp_info_count(waits, "waits"); i++) {
        const rp_info *wait = rp_info_at(waits, "waits", i);
        if (kind && strcmp(rp_info_text(wait, "kind"), kind) != 0)
            continue;
        n++;
        if (text)
            snprintf(text, size, "%s", rp_info_text(wait, "text"));
    }
    return n;
}
