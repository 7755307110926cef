/* The list of errors: its codes are Reply.status on the wire and the return value of every call of the library. */
#ifndef REPLAY_ERROR_H
#define REPLAY_ERROR_H

#include <stdint.h>

#if defined(__GNUC__)
#define RP_API __attribute__((visibility("default")))
#define RP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define RP_API
#define RP_PRINTF(fmt, args)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, code, meaning). Codes are part of the protocol: add at the end, never renumber. */
#define RP_STATUS_LIST(X)                                                                                              \
    X(OK, 0, "success")                                                                                                \
    X(INVALID_ARGUMENT, 1, "a value is not allowed")                                                                   \
    X(NOT_FOUND, 2, "no such table, item, slot or group")                                                              \
    X(ALREADY_EXISTS, 3, "the key is in the table already")                                                            \
    X(DEADLINE_EXCEEDED, 4, "the time allowed has passed")                                                             \
    X(RESOURCE_EXHAUSTED, 5, "a limit on bytes, items or requests is reached")                                         \
    X(FAILED_PRECONDITION, 6, "not possible in the present state")                                                     \
    X(UNSUPPORTED, 7, "unknown protocol version, message or option")                                                   \
    X(BAD_MESSAGE, 8, "a frame could not be decoded")                                                                  \
    X(SESSION_UNKNOWN, 9, "the broker does not know this session")                                                     \
    X(IN_DOUBT, 10, "it is not known whether these items were inserted")                                               \
    X(CANCELLED, 11, "given up by the caller or by a broker that shuts down")                                          \
    X(UNAVAILABLE, 12, "no broker answers")                                                                            \
    X(DATA_LOSS, 13, "stored or received data is damaged")                                                             \
    X(CREDIT_EXCEEDED, 14, "more was sent than the broker had allowed")                                                \
    X(END_OF_STREAM, 15, "there is nothing more to come")                                                              \
    X(NO_MEMORY, 16, "out of memory")                                                                                  \
    X(IO, 17, "a file or socket operation failed")                                                                     \
    X(INTERNAL, 18, "a defect of this program")                                                                        \
    X(PERMISSION_DENIED, 19, "the key does not allow this, or there is none")

/* After DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, CANCELLED and UNAVAILABLE, the same call may succeed later. The other codes say that
 * something has to change first. */
typedef enum rp_status {
#define RP_STATUS_ENUM(name, code, text) RP_##name = (code),
    RP_STATUS_LIST(RP_STATUS_ENUM)
#undef RP_STATUS_ENUM
} rp_status;

/* What went wrong, as a code and as a sentence. Calls that take an rp_error accept NULL, and set it if they fail. */
typedef struct rp_error {
    int32_t status; /* an rp_status */
    char text[508];
} rp_error;

/* "RESOURCE_EXHAUSTED"; "UNKNOWN" for a code that is not in the list. */
RP_API const char *rp_status_name(int32_t status);
/* The meaning in the list above. */
RP_API const char *rp_status_text(int32_t status);
/* "1.0.0" */
RP_API const char *rp_version(void);

#ifdef __cplusplus
}
#endif

#endif
