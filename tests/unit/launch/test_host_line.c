/* Lines between launcher and node agent: whatever is sent arrives, and whatever else arrives does no harm. */
#include <fcntl.h>

#include "agent/launch/host/host_line.h"
#include "proto/base/utf8.h"
#include "tests/support/naive.h"

/* Both ends of a pipe, with a reader and a writer. */
struct world {
    int ends[2];
    struct host_noise noise;
    struct host_reader reader;
    struct host_writer writer;
};

static void set_up(struct world *w)
{
    assert_int_equal(pipe2(w->ends, O_CLOEXEC | O_NONBLOCK), 0);
    host_reader_init(&w->reader, w->ends[0], &w->noise);
    host_writer_init(&w->writer, w->ends[1]);
}

static void tear_down(struct world *w)
{
    host_reader_fini(&w->reader);
    host_writer_fini(&w->writer);
    close(w->ends[0]);
    if (w->ends[1] >= 0)
        close(w->ends[1]);
}

FIXTURE(struct world, set_up, tear_down)

/* Writes raw bytes and reads all lines; returns how many there were. */
static int feed(struct world *w, const void *bytes, size_t size)
{
    const char *at = bytes;
    int lines = 0;
    while (size > 0) {
        ssize_t n = write(w->ends[1], at, size < 4096 ? size : 4096);
        assert_true(n > 0);
        at += n;
        size -= (size_t)n;
        while (host_reader_fill(&w->reader) > 0) {
            for (struct host_message message; host_reader_next(&w->reader, &message); lines++)
                json_object_put(message.line);
        }
    }
    return lines;
}

static int feed_text(struct world *w, const char *text)
{
    return feed(w, text, strlen(text));
}

/* ---- members ---- */

TEST(members)
{
    struct json_object *line =
        json_tokener_parse("{\"text\":\"t\",\"nul\":\"a\\u0000b\",\"big\":1e300,\"n\":-5,\"huge\":99999999999999999999,"
                           "\"nan\":NaN,\"list\":[\"a\",\"b\"],\"mixed\":[\"a\",1],\"yes\":true}");
    assert_non_null(line);
    assert_string_equal(host_line_text(line, "text"), "t");
    assert_null(host_line_text(line, "nul"));
    assert_null(host_line_text(line, "n"));
    assert_null(host_line_text(line, "missing"));
    assert_int_equal(host_line_number(line, "n", -10, 10), -5);
    assert_int_equal(host_line_number(line, "n", 0, 10), 0);
    assert_int_equal(host_line_number(line, "huge", 0, 10), 10);
    assert_int_equal(host_line_number(line, "text", 3, 10), 3);
    assert_true(host_line_real(line, "nan", 1, 10) == 1);
    assert_true(host_line_real(line, "big", 1, 10) == 10);
    assert_true(host_line_flag(line, "yes"));
    assert_false(host_line_flag(line, "n"));
    assert_null(host_line_list(line, "mixed"));
    assert_null(host_line_list(line, "text"));
    const char **list = host_line_list(line, "list");
    assert_true(list && strcmp(list[0], "a") == 0 && strcmp(list[1], "b") == 0 && !list[2]);
    free(list);
    json_object_put(line);
}

/* ---- whatever is sent arrives ---- */

static struct host_message await_line(struct world *w)
{
    struct host_message message = {0};
    for (int turn = 0; turn < 1000; turn++) {
        if (host_reader_next(&w->reader, &message))
            return message;
        host_writer_flush(&w->writer);
        host_reader_fill(&w->reader);
    }
    fail_msg("no line arrives");
    return message;
}

static void fill(struct rng *rng, void *out, size_t size)
{
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
        uint64_t word = rng_next(rng);
        memcpy((char *)out + at, &word, size - at < sizeof word ? size - at : sizeof word);
    }
}

static void put_noise(struct world *w, struct rng *rng)
{
    char noise[3000];
    size_t size = rng_below(rng, sizeof noise);
    fill(rng, noise, size);
    if (size > 0 && rng_below(rng, 4) > 0)
        noise[size - 1] = '\n'; /* otherwise the line goes on with the mark of ours */
    for (size_t i = 0; i + 4 < size; i++)
        if (memcmp(noise + i, "@rp ", 4) == 0)
            noise[i] = 'x';
    host_writer_flush(&w->writer);
    if (host_writer_empty(&w->writer))
        assert_int_equal(write(w->ends[1], noise, size), size);
}

CASE(random_lines)
{
    struct rng rng;
    uint64_t seed = 20240611;
    print_message("seed %llu\n", (unsigned long long)seed);
    rng_seed(&rng, seed);
    for (int round = 0; round < 200; round++) {
        static uint8_t bytes[HOST_DATA_MOST];
        size_t size = rng_below(&rng, 3) == 0 ? rng_below(&rng, sizeof bytes + 1) : rng_below(&rng, 40);
        char text[64];
        size_t length = rng_below(&rng, sizeof text);
        fill(&rng, bytes, size);
        for (size_t i = 0; i < length; i++)
            text[i] = (char)(1 + rng_below(&rng, 255));
        text[length] = '\0';
        if (rng_below(&rng, 2) == 0)
            put_noise(f, &rng);
        struct json_object *line = host_line_new("output");
        host_line_add_number(line, "id", round);
        host_line_add_text(line, "text", text);
        assert_true(host_writer_put_data(&f->writer, line, bytes, size));
        struct host_message message = await_line(f);
        line = message.line;
        assert_string_equal(host_line_text(line, "type"), "output");
        assert_int_equal(host_line_number(line, "id", 0, 1000), round);
        assert_string_equal(host_line_text(line, "text"), text);
        assert_int_equal(message.size, size);
        if (size > 0)
            assert_memory_equal(message.bytes, bytes, size);
        json_object_put(line);
    }
    char out[2000];
    assert_true(utf8_valid(host_noise_text(&f->noise, out, sizeof out), strlen(out)));
}

/* ---- whatever else arrives does no harm ---- */

CASE(hostile_lines)
{
    assert_int_equal(feed_text(f, "@rp {}\n"), 1);
    assert_int_equal(feed_text(f, "@rp {\"a\":1}\r\n"), 1);
    assert_int_equal(feed_text(f, "login: @rp {\"a\":1}\n"), 1);
    static const char bad[] =
        "\n@rp\n@rp \n@rp {\n@rp }\n@rp []\n@rp null\n@rp {} {}\n@rp {}x\n@rp {a:1}\n@RP {}\n@rp {\"a\"}\n"
        "@rp {\"a\":}\n@rp {\"a\":\"\n@rp {\"a\":\"\\ud800\n@rp {\"a\":tru}\n@rp {\"a\":01}x\n";
    assert_int_equal(feed_text(f, bad), 0);
    char deep[4096];
    int used = snprintf(deep, sizeof deep, "@rp {\"a\":");
    memset(deep + used, '[', 4000);
    deep[used + 4000] = '\n';
    assert_int_equal(feed(f, deep, (size_t)used + 4001), 0);
    assert_int_equal(feed(f, "@rp {\"a\":\"\0\"}\n", 15), 0);
    assert_int_equal(feed_text(f, "@rp {}\n"), 1);
    for (uint32_t i = 0; i < f->noise.n; i++)
        assert_true(utf8_valid(f->noise.lines[i], strlen(f->noise.lines[i])));
}

/* A line that is too long is left out whole; the longest one that is allowed gets through. */
CASE(long_lines)
{
    static char line[4 * HOST_LINE_MOST];
    static const size_t sizes[] = {HOST_LINE_MOST - 1, HOST_LINE_MOST, HOST_LINE_MOST + 1, 2 * HOST_LINE_MOST,
                                   3 * HOST_LINE_MOST + 17};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memset(line, 'x', sizeof line);
        memcpy(line, "@rp {\"a\":\"", 10);
        memcpy(line + sizes[i] - 3, "\"}\n", 3);
        assert_int_equal(feed(f, line, sizes[i]), sizes[i] <= HOST_LINE_MOST);
        assert_int_equal(feed_text(f, "@rp {}\n"), 1);
    }
    /* The middle of a long line is not taken for a line of ours. */
    memset(line, 'x', sizeof line);
    memcpy(line + 2 * HOST_LINE_MOST, "@rp {}", 6);
    line[3 * HOST_LINE_MOST] = '\n';
    assert_int_equal(feed(f, line, 3 * HOST_LINE_MOST + 1), 0);
    struct json_object *object = host_line_new("x");
    memset(line, 'y', HOST_LINE_MOST);
    line[HOST_LINE_MOST] = '\0';
    host_line_add_text(object, "text", line);
    assert_false(host_writer_put(&f->writer, object));
    assert_false(f->writer.broken);
}

CASE(random_bytes)
{
    struct rng rng = rng_of(77);
    static const char pieces[] = "@rp {}[]\":,\\u0\n\n";
    for (int round = 0; round < 60; round++) {
        char bytes[2048];
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = rng_below(&rng, 3) ? pieces[rng_below(&rng, sizeof pieces - 1)] : (char)rng_next(&rng);
        feed(f, bytes, sizeof bytes);
    }
    assert_int_equal(feed_text(f, "\n@rp {}\n"), 1);
}

/* Bytes that follow a line are no lines, whatever they are; a number that nobody of ours writes is not believed. */
CASE(bytes)
{
    struct host_message message;
    assert_int_equal(feed_text(f, "@rp {\"bytes\":7}\n@rp {}\n@rp {}\n"), 2);
    assert_int_equal(feed_text(f, "@rp {\"bytes\":4}\nabc"), 0);
    assert_int_equal(write(f->ends[1], "d@rp {}\n", 8), 8);
    host_reader_fill(&f->reader);
    assert_true(host_reader_next(&f->reader, &message));
    assert_int_equal(message.size, 4);
    assert_memory_equal(message.bytes, "abcd", 4);
    json_object_put(message.line);
    assert_true(host_reader_next(&f->reader, &message));
    assert_true(message.size == 0 && !message.bytes);
    json_object_put(message.line);
    static const char *const bad[] = {"-1", "1e3", "\"4\"", "null", "[4]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "@rp {\"bytes\":%s}\n@rp {}\n", bad[i]);
        assert_int_equal(feed_text(f, line), 2); /* none follow */
    }
    assert_int_equal(feed_text(f, "@rp {\"bytes\":32769}\n@rp {}\n"), 1);
    assert_int_equal(feed_text(f, "@rp {\"bytes\":99999999999999999999}\n@rp {}\n"), 1);
    assert_int_equal(feed_text(f, "@rp {\"bytes\":10}\nend"), 0);
    close(f->ends[1]);
    f->ends[1] = -1;
    host_reader_fill(&f->reader);
    assert_false(host_reader_next(&f->reader, &message));
}

/* The last line may end with the stream; then nothing more comes. */
CASE(end)
{
    assert_int_equal(feed_text(f, "@rp {\"a\":1}"), 0);
    close(f->ends[1]);
    f->ends[1] = -1;
    assert_int_equal(host_reader_fill(&f->reader), 0);
    assert_true(f->reader.ended);
    struct host_message message;
    assert_true(host_reader_next(&f->reader, &message));
    json_object_put(message.line);
    assert_false(host_reader_next(&f->reader, &message));
}

CASE(noise)
{
    char out[1000];
    feed_text(f, "one\ntwo\n\n   \nthree \x1b[31m\nfour\n");
    assert_int_equal(f->noise.n, HOST_NOISE_LINES);
    assert_string_equal(host_noise_text(&f->noise, out, sizeof out), "two; three [31m; four");
}

/* A reader that does not read holds the writer back; one that never reads breaks the connection, and memory is bounded. */
CASE(bounds)
{
    static uint8_t bytes[HOST_DATA_MOST];
    int put = 0;
    for (; host_writer_room(&f->writer); put++) {
        struct json_object *line = host_line_new("output");
        assert_true(host_writer_put_data(&f->writer, line, bytes, sizeof bytes));
        host_writer_flush(&f->writer);
    }
    assert_true(put < 16);
    assert_false(f->writer.broken);
    for (; !f->writer.broken && put < 10000; put++) {
        struct json_object *line = host_line_new("output");
        host_writer_put_data(&f->writer, line, bytes, sizeof bytes);
    }
    assert_true(f->writer.broken);
    assert_true(f->writer.queue.size - f->writer.sent <= HOST_QUEUE_HARD);
    assert_false(host_writer_room(&f->writer));
}
