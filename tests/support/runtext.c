#include "tests/support/runtext.h"

#include "tests/support/facts.h"

struct run_config runtext_read(const char *text, const char *const *overrides)
{
    struct run_config config = {0};
    struct schema_report *report = schema_report_new();
    if (!(text ? run_config_read_text("run.yaml", text, overrides, &config, report)
               : run_config_read(NULL, overrides, &config, report)))
        fail_msg("%s", schema_report_text(report));
    schema_report_destroy(&report);
    return config;
}

void runtext_expect(const char *text, const char *problems)
{
    struct run_config config = {0};
    struct schema_report *report = schema_report_new();
    bool good = run_config_read_text("run.yaml", text, NULL, &config, report);
    facts_same(schema_report_text(report), problems);
    assert_int_equal(good, problems[0] == '\0');
    schema_report_destroy(&report);
    if (good)
        run_config_free(&config);
}
