/* Any bytes as a block of weights, as they are and with size and checksum made right so that the rest is read. What is
 * accepted must be what weights_encode writes. */
#include <string.h>

#include "agent/learn/weights.h"
#include "proto/base/crc32c.h"
#include "tests/fuzz/target.h"

static void check_accepted(const uint8_t *block, size_t size, struct tensor *tensors, uint32_t n)
{
    CHECK(n <= WEIGHTS_MAX_TENSORS && weights_size(tensors, n) == size);
    uint8_t *again = malloc(size);
    CHECK(again != NULL);
    weights_encode(tensors, n, again);
    CHECK(memcmp(block, again, size) == 0);
    /* Into memory of exactly the right sizes. */
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = tensor_bytes(&tensors[i]);
        CHECK(bytes < size);
        tensors[i].data = malloc(bytes ? bytes : 1);
        CHECK(tensors[i].data != NULL);
    }
    CHECK(weights_decode(block, size, tensors, n, NULL) == RP_OK);
    weights_encode(tensors, n, again);
    CHECK(memcmp(block, again, size) == 0);
    for (uint32_t i = 0; i < n; i++)
        free(tensors[i].data);
    free(again);
}

static void run(const uint8_t *block, size_t size)
{
    static struct tensor tensors[WEIGHTS_MAX_TENSORS];
    float value = 0;
    struct tensor wanted = {.name = "q/layer0/weight", .dtype = RP_DTYPE_FLOAT32, .data = &value};
    uint32_t n = 0;
    rp_error err;
    if (weights_list(block, size, tensors, WEIGHTS_MAX_TENSORS, &n, &err) == RP_OK)
        check_accepted(block, size, tensors, n);
    else
        CHECK(weights_decode(block, size, &wanted, 1, &err) != RP_OK && err.text[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    run(data, size);
    if (size < 36)
        return 0;
    uint8_t *copy = malloc(size);
    CHECK(copy != NULL);
    memcpy(copy, data, size);
    memcpy(copy, "RPWT", 4);
    for (uint32_t i = 0; i < 8; i++)
        copy[16 + i] = (uint8_t)((uint64_t)size >> (8 * i));
    uint32_t sum = crc32c(0, copy, size - 4);
    for (uint32_t i = 0; i < 4; i++)
        copy[size - 4 + i] = (uint8_t)(sum >> (8 * i));
    run(copy, size);
    free(copy);
    return 0;
}
