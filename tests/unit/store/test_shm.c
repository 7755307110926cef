/* Shared memory: objects are apart, have stamps of their own, and their memory returns. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "broker/store/shm.h"
#include "proto/base/rng.h"
#include "tests/support/test.h"

#define LIMIT (UINT64_C(1) << 30)
#define OBJECTS 300u

struct object {
    uint8_t *data;
    size_t bytes;
    uint64_t stamp;
};

static uint64_t pages_of(const struct shm *shm)
{
    struct stat info;
    assert_int_equal(fstat(shm_file(shm)->fd, &info), 0);
    return (uint64_t)info.st_blocks * 512;
}

/* Writes the object's own mark at its ends, and checks it. */
static void mark(const struct object *object)
{
    memcpy(object->data, &object->stamp, 8);
    memcpy(object->data + object->bytes - 8, &object->stamp, 8);
}

static void check(const struct shm *shm, const uint8_t *mapped, const struct object *object)
{
    struct shm_place place = shm_place(shm, object->data);
    assert_int_equal(place.stamp, object->stamp);
    assert_int_equal(place.at % 64, 0);
    assert_memory_equal(mapped + place.at - 64, &object->stamp, 8);
    assert_memory_equal(mapped + place.at, &object->stamp, 8);
    assert_memory_equal(mapped + place.at + object->bytes - 8, &object->stamp, 8);
}

static size_t random_bytes(struct rng *rng)
{
    static const size_t most[] = {5000, 9000, 80000, 600000, 5000000, 9000000};
    return 16 + (size_t)rng_below(rng, most[rng_below(rng, 100) < 90 ? rng_below(rng, 3) : rng_below(rng, 6)]);
}

TEST(random_objects)
{
    struct shm *shm = shm_new(LIMIT);
    assert_non_null(shm);
    struct memfile file = *shm_file(shm);
    uint8_t *mapped = mmap(NULL, file.size, PROT_READ, MAP_SHARED, file.fd, 0);
    assert_true(mapped != MAP_FAILED);
    static struct object objects[OBJECTS];
    struct rng rng;
    rng_seed(&rng, 3);
    uint64_t newest = 0;
    for (int round = 0; round < 20000; round++) {
        struct object *object = &objects[rng_below(&rng, OBJECTS)];
        if (object->data) {
            check(shm, mapped, object);
            uint64_t at = shm_place(shm, object->data).at;
            shm_free(shm, object->data);
            assert_true(memcmp(mapped + at - 64, &object->stamp, 8) != 0);
            *object = (struct object){0};
            continue;
        }
        object->bytes = random_bytes(&rng);
        object->data = shm_alloc(shm, object->bytes);
        assert_non_null(object->data);
        object->stamp = shm_place(shm, object->data).stamp;
        assert_true(round == 0 || object->stamp == newest + 1);
        newest = object->stamp;
        mark(object);
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < OBJECTS; i++)
        if (objects[i].data) {
            check(shm, mapped, &objects[i]);
            bytes += objects[i].bytes;
            shm_free(shm, objects[i].data);
        }
    assert_true(bytes > 0);
    assert_int_equal(shm_bytes(shm)->used, 0);
    munmap(mapped, file.size);
    shm_destroy(&shm);
}

/* What is counted is what is there, and pages go back when much is free. */
TEST(memory_returns)
{
    struct shm *shm = shm_new(LIMIT);
    static void *objects[3000];
    for (uint32_t i = 0; i < 3000; i++) {
        objects[i] = shm_alloc(shm, 100000);
        memset(objects[i], 1, 100000);
    }
    const struct shm_bytes *bytes = shm_bytes(shm);
    assert_in_range(bytes->used, 300000000, 340000000);
    assert_in_range(pages_of(shm), 300000000, bytes->reserved + 4096);
    for (uint32_t i = 0; i < 3000; i++)
        shm_free(shm, objects[i]);
    assert_int_equal(bytes->used, 0);
    assert_true(bytes->reserved <= LIMIT / 32);
    assert_true(pages_of(shm) <= bytes->reserved + 4096);
    /* A large object takes what it needs, not whole units, and not what was in its unit before. */
    shm_free(shm, shm_alloc(shm, (4u << 20) - 64));
    uint64_t before = bytes->reserved;
    void *large = shm_alloc(shm, 600000);
    assert_in_range(bytes->used, 600000, 608000);
    assert_true(bytes->reserved <= before - (3u << 20) && pages_of(shm) <= bytes->reserved + 4096);
    shm_free(shm, large);
    assert_null(shm_alloc(shm, shm_file(shm)->size));
    shm_destroy(&shm);
}

/* Pages that are kept for the next objects are few beside the room. */
TEST(few_spare_pages)
{
    struct shm *shm = shm_new(UINT64_C(64) << 20);
    static void *objects[300];
    for (uint32_t i = 0; i < 300; i++)
        objects[i] = shm_alloc(shm, 200000);
    for (uint32_t i = 0; i < 300; i++)
        shm_free(shm, objects[i]);
    assert_true(shm_bytes(shm)->reserved <= 2u << 20);
    shm_destroy(&shm);
}

/* The pages of an object are there before it is written to; if the system has none, there is no object. */
TEST(pages_come_first)
{
    struct shm *shm = shm_new(LIMIT);
    const struct shm_bytes *bytes = shm_bytes(shm);
    int fd = shm_file(shm)->fd, file = dup(fd), none = open("/dev/null", O_RDONLY);
    static const size_t sizes[] = {5000, 400000, 3000000, 10000000};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(dup2(none, fd), fd);
        assert_null(shm_alloc(shm, sizes[i]));
        assert_int_equal(dup2(file, fd), fd);
        uint64_t used = bytes->used;
        void *object = shm_alloc(shm, sizes[i]);
        assert_non_null(object);
        assert_in_range(bytes->used - used, sizes[i], sizes[i] + sizes[i] / 4);
        assert_int_equal(pages_of(shm), bytes->reserved + 4096);
        if (i % 2)
            shm_free(shm, object);
    }
    close(file);
    close(none);
    shm_destroy(&shm);
}

/* A process that may not make large files goes without, and lives. */
TEST(no_large_files)
{
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {1 << 20, 1 << 20};
        _exit(setrlimit(RLIMIT_FSIZE, &limit) != 0 || shm_new(LIMIT) != NULL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
