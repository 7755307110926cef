/* A main for fuzz targets without libFuzzer: runs every file of the folders (or files) that are named, a short one also
 * cut at every byte, and then a fixed number of damaged copies of each, so that compilers other than clang exercise the
 * same code. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/base/rng.h"
#include "tests/fuzz/target.h"

#define INPUT_BYTES (1u << 20)
#define DAMAGED_COPIES 200
#define CUT_BYTES 512u /* inputs up to this size are cut at every byte */

/* An exact-size copy, so that a read past the end is seen by AddressSanitizer. */
static void run_copy(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        exit(2);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* Cuts the input somewhere, and turns a few of its bits over; the data is then as it was. */
static void run_damaged(uint8_t *data, size_t size, struct rng *rng)
{
    uint64_t bits[4], edits = 1 + rng_below(rng, 4);
    run_copy(data, rng_below(rng, size));
    for (uint64_t i = 0; i < edits; i++) {
        bits[i] = rng_below(rng, 8 * size);
        data[bits[i] / 8] ^= (uint8_t)(1u << bits[i] % 8);
    }
    run_copy(data, size);
    for (uint64_t i = 0; i < edits; i++)
        data[bits[i] / 8] ^= (uint8_t)(1u << bits[i] % 8);
}

static int run_file(const char *path, struct rng *rng)
{
    FILE *in = fopen(path, "rb");
    if (!in) {
        perror(path);
        return -1;
    }
    uint8_t *data = malloc(INPUT_BYTES);
    size_t size = data ? fread(data, 1, INPUT_BYTES, in) : 0;
    fclose(in);
    run_copy(data, size);
    for (size_t cut = 0; size <= CUT_BYTES && cut < size; cut++)
        run_copy(data, cut);
    for (int i = 0; size > 0 && i < DAMAGED_COPIES; i++)
        run_damaged(data, size, rng);
    free(data);
    return 1;
}

static int run_path(const char *path, struct rng *rng)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return 0;
    if (!S_ISDIR(status.st_mode))
        return run_file(path, rng);
    DIR *folder = opendir(path);
    int total = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        int n = entry->d_name[0] == '.' ? 0 : run_path(file, rng);
        if (n < 0) {
            closedir(folder);
            return n;
        }
        total += n;
    }
    if (folder)
        closedir(folder);
    return total;
}

int main(int argc, char **argv)
{
    struct rng rng;
    rng_seed(&rng, 1);
    int total = 0;
    run_copy((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) {
        int n = run_path(argv[i], &rng);
        if (n < 0)
            return 1;
        total += n;
    }
    printf("%d seeds, each with %d damaged copies: no crash\n", total, 2 * DAMAGED_COPIES);
    return 0;
}
