/* The rows that the text for Prometheus is made from, and its numbers. integration.metrics_py reads the text of a real broker strictly. */

#include "broker/program/metrics_text.h"
#include "tests/support/test.h"

/* Every number of these messages has a row: nothing is forgotten in the sum over shards. */
TEST(every_number_has_a_row)
{
    static const struct figures *const lists[] = {&server_figures,  &memory_figures,  &disk_figures,    &status_figures,
                                                  &command_figures, &table_figures,   &limiter_figures, &slot_figures,
                                                  &counter_figures, &process_figures, &thread_figures};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const ProtobufCMessageDescriptor *of = lists[i]->of;
        for (const struct figure *row = lists[i]->rows; row->name; row++)
            if (!protobuf_c_message_descriptor_get_field_by_name(of, row->name))
                fail_msg("%s has no field %s", of->name, row->name);
        for (unsigned k = 0; k < of->n_fields; k++) {
            ProtobufCType type = of->fields[k].type;
            if (type != PROTOBUF_C_TYPE_STRING && type != PROTOBUF_C_TYPE_MESSAGE &&
                !figure_find(of, of->fields[k].name))
                fail_msg("figures.c has no row for %s of %s", of->fields[k].name, of->name);
        }
    }
}

TEST(numbers_are_written_as_they_are)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},
                 {1, "1"},
                 {-1, "-1"},
                 {0.5, "0.5"},
                 {1e15, "1000000000000000"},
                 {INFINITY, "+Inf"},
                 {-INFINITY, "-Inf"},
                 {NAN, "NaN"},
                 {-0.25, "-0.25"},
                 {1e300, "1e+300"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct text out = {0};
        metrics_real(&out, cases[i].value);
        assert_int_equal(out.size, strlen(cases[i].text));
        assert_memory_equal(out.data, cases[i].text, out.size);
        text_fini(&out);
    }
}
