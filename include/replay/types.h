/* Columns, which are what a step consists of, and the types of their elements. Values are plain arrays in C order. */
#ifndef REPLAY_TYPES_H
#define REPLAY_TYPES_H

#include <stdint.h>

#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_MAX_RANK 8u                       /* dimensions of a column */
#define RP_MAX_COLUMNS 255u                  /* columns of a stream */
#define RP_MAX_NAME 255u                     /* bytes in a name of anything */
#define RP_MAX_ROW_BYTES (UINT64_C(1) << 30) /* bytes of one step of a column */

/* X(enum, code, wire name, bytes, is integer) */
#define RP_DTYPE_LIST(X)                                                                                               \
    X(BOOL, 1, "bool", 1, 0)                                                                                           \
    X(INT8, 2, "int8", 1, 1)                                                                                           \
    X(INT16, 3, "int16", 2, 1)                                                                                         \
    X(INT32, 4, "int32", 4, 1)                                                                                         \
    X(INT64, 5, "int64", 8, 1)                                                                                         \
    X(UINT8, 6, "uint8", 1, 1)                                                                                         \
    X(UINT16, 7, "uint16", 2, 1)                                                                                       \
    X(UINT32, 8, "uint32", 4, 1)                                                                                       \
    X(UINT64, 9, "uint64", 8, 1)                                                                                       \
    X(FLOAT16, 10, "float16", 2, 0)                                                                                    \
    X(BFLOAT16, 11, "bfloat16", 2, 0)                                                                                  \
    X(FLOAT32, 12, "float32", 4, 0)                                                                                    \
    X(FLOAT64, 13, "float64", 8, 0)                                                                                    \
    X(COMPLEX64, 14, "complex64", 8, 0)                                                                                \
    X(COMPLEX128, 15, "complex128", 16, 0)

typedef enum rp_dtype {
#define RP_DTYPE_ENUM(name, code, text, bytes, integer) RP_DTYPE_##name = (code),
    RP_DTYPE_LIST(RP_DTYPE_ENUM)
#undef RP_DTYPE_ENUM
} rp_dtype;

/* How the values of a column are compressed. AUTO takes the smallest encoding for each chunk of steps, and raw if none shrinks it. */
typedef enum rp_codec {
    RP_CODEC_RAW = 0,
    RP_CODEC_LZ4 = 1,
    RP_CODEC_SHUFFLE_LZ4 = 2,       /* groups bytes of equal significance, then lz4 */
    RP_CODEC_DELTA_LZ4 = 3,         /* each step minus the step before, element by element, then lz4 */
    RP_CODEC_DELTA_SHUFFLE_LZ4 = 4, /* both */
    RP_CODEC_ABSENT = 254,          /* on the wire only: the column has no data in this chunk; size 0 */
    RP_CODEC_AUTO = 255             /* never on the wire */
} rp_codec;

/* A named tensor of a stream. The shape is that of one step, and may hold a 0. */
typedef struct rp_column {
    const char *name;
    int32_t dtype; /* an rp_dtype */
    int32_t codec; /* an rp_codec */
    uint32_t rank; /* 0: one number */
    uint32_t shape[RP_MAX_RANK];
} rp_column;

#ifdef __cplusplus
}
#endif

#endif
