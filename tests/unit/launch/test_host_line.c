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
            for (struct host_message message; host_reader_next(&w->reader, &message);)
                lines++;
        }
    }
    return lines;
}

static int feed_text(struct world *w, const char *text)
{
    return feed(w, text, strlen(text));
}

/* ---- members ---- */

/* Reads one line. */
static const struct host_line *read_one(struct world *w, const char *text)
{
    struct host_message message;
    assert_int_equal(write(w->ends[1], text, strlen(text)), strlen(text));
    host_reader_fill(&w->reader);
    assert_true(host_reader_next(&w->reader, &message));
    return message.line;
}

CASE(members)
{
    const struct host_line *line = read_one(
        f, "@rp {\"type\":\"t\",\"name\":\"a\\u0000b\",\"cores\":1e300,\"pid\":-5,\"offset\":99999999999999999999,"
           "\"memory\":NaN,\"text\":[\"a\"],\"ok\":true,\"last\":1,\"id\":\"7\"}\n");
    assert_string_equal(line->type, "t");
    assert_null(line->name);
    assert_null(line->text);
    assert_null(line->version);
    assert_int_equal(line->pid, -5);
    assert_true(line->offset == INT64_MAX);
    assert_int_equal(line->id, 0);
    assert_true(line->cores == 1e300 && line->memory == 0);
    assert_true(line->ok && !line->last);
    line = read_one(f, "@rp {}\n");
    assert_true(!line->type && line->pid == 0 && !line->ok); /* nothing of the line before */
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
        const struct host_line line = {.type = "output", .id = round, .text = text};
        assert_true(host_writer_put(&f->writer, &line, bytes, size));
        struct host_message message = await_line(f);
        assert_string_equal(message.line->type, "output");
        assert_int_equal(message.line->id, round);
        assert_string_equal(message.line->text, text);
        assert_int_equal(message.size, size);
        if (size > 0)
            assert_memory_equal(message.bytes, bytes, size);
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
    assert_true(host_reader_next(&f->reader, &message));
    assert_true(message.size == 0 && !message.bytes);
    static const char *const bad[] = {"-1", "1e3", "\"4\"", "null", "[4]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "@rp {\"bytes\":%s}\n@rp {}\n", bad[i]);
        assert_int_equal(feed_text(f, line), 2); /* none follow */
    }
    assert_int_equal(feed_text(f, textf("@rp {\"bytes\":%u}\n@rp {}\n", HOST_DATA_MOST + 1)), 1);
    assert_int_equal(feed_text(f, "@rp {\"bytes\":99999999999999999999}\n@rp {}\n"), 1);
    assert_int_equal(feed_text(f, "@rp {\"bytes\":10}\nend"), 0);
    host_writer_fini(&f->writer);
    host_reader_fill(&f->reader);
    assert_false(host_reader_next(&f->reader, &message));
}

/* The last line may end with the stream; then nothing more comes. */
CASE(end)
{
    assert_int_equal(feed_text(f, "@rp {\"a\":1}"), 0);
    host_writer_fini(&f->writer);
    assert_int_equal(host_reader_fill(&f->reader), 0);
    assert_true(f->reader.ended);
    struct host_message message;
    assert_true(host_reader_next(&f->reader, &message));
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
        assert_true(host_writer_put(&f->writer, &(struct host_line){.type = "output"}, bytes, sizeof bytes));
        host_writer_flush(&f->writer);
    }
    assert_true(put < 16);
    assert_false(f->writer.broken);
    for (; !f->writer.broken && put < 10000; put++)
        host_writer_put(&f->writer, &(struct host_line){.type = "output"}, bytes, sizeof bytes);
    assert_true(f->writer.broken);
    assert_true(f->writer.queue.size - f->writer.sent <= HOST_QUEUE_HARD);
    assert_false(host_writer_room(&f->writer));
}
