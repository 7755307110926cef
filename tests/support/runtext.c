#include "tests/support/runtext.h"

#include "agent/config/config.h"
#include "tests/support/facts.h"
#include "tests/support/test.h"

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
