/* Status codes and the message that goes with a failure. */
#ifndef TP_STATUS_H
#define TP_STATUS_H

#include <tp/export.h>

/* X(name, text): the one list that codes, names and texts come from. */
#define TP_STATUS_LIST(X)                                                          \
    X(TP_OK, "ok")                                                                 \
    X(TP_ERR_ARGUMENT, "invalid argument")                                         \
    X(TP_ERR_SHAPE, "shapes do not fit")                                           \
    X(TP_ERR_DTYPE, "dtype not accepted here")                                     \
    X(TP_ERR_UNSUPPORTED, "not supported by this build or device")                 \
    X(TP_ERR_MEMORY, "out of memory")                                              \
    X(TP_ERR_STATE, "call not allowed in this state")                              \
    X(TP_ERR_IO, "file could not be read or written")                              \
    X(TP_ERR_FORMAT, "file is malformed")                                          \
    X(TP_ERR_NUMERIC, "a value is not finite")                                     \
    X(TP_ERR_BACKEND, "device backend not available")                              \
    X(TP_ERR_VERSION, "header and library versions differ")                        \
    X(TP_ERR_COMM, "communication failed")                                         \
    X(TP_ERR_MISMATCH, "ranks called different collectives")                       \
    X(TP_ERR_TIMEOUT, "a wait ran past its bound")                                 \
    X(TP_ERR_PEER, "another rank failed")                                          \
    X(TP_ERR_INTERNAL, "internal error")

typedef enum tp_status {
#define TP_STATUS_ENUM(name, text) name,
    TP_STATUS_LIST(TP_STATUS_ENUM)
#undef TP_STATUS_ENUM
    TP_STATUS_COUNT
} tp_status;

TP_BEGIN_DECLS

/* "TP_ERR_SHAPE"; "TP_ERR_?" for a number that is no status. */
TP_API const char *tp_status_name(tp_status status);

/* "shapes do not fit"; never NULL. */
TP_API const char *tp_status_text(tp_status status);

/* The message of this thread's last failing call, "" if there was none. It names the field and both offending numbers.
 * Valid until this thread's next failing call. A context keeps its own copy: tp_ctx_message. */
TP_API const char *tp_last_message(void);

TP_END_DECLS
#endif
