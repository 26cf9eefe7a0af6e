/* Inside a context, and the services every part of the library uses. */
#ifndef TPI_CONTEXT_H
#define TPI_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/arena.h"
#include "core/backend.h"

#define TPI_MESSAGE_BYTES 512

/* First failure wins: set once, from any lane. */
typedef struct tpi_failure {
    atomic_int status; /* tp_status */
    pthread_mutex_t lock;
    char message[TPI_MESSAGE_BYTES];
} tpi_failure;

struct tp_ctx {
    tp_ctx_desc desc; /* resolved: no zero means default any more */
    tp_mesh mesh;
    const tpi_backend *backend;
    const struct tpi_host_table *host; /* for plugins */
    void *device_state;
    bool behind; /* ranks wait for each other when they issue: the backend's word, or a test's */
    enum tpi_pulling {
        TPI_PULL_BY_CORES = 0, /* on a lane if it has a core of its own, else in a plan of one lane */
        TPI_PULL_ON_LANE,
        TPI_PULL_INLINE
    } pulling;                 /* of plans made from now on; set by tests and measurements */
    tpi_stream *compute;
    tpi_stream *streams; /* all of them, compute too: stream.h */
    tpi_arena scratch; /* mark/release stack of the compute stream */
    tp_comm *world;
    tp_comm *group[TP_AXIS_COUNT];
    tpi_failure failure;
    char refused[TPI_MESSAGE_BYTES]; /* last refused call: nothing was changed by it */
    tp_memory_count memory[TP_MEMORY_KINDS];
    uint64_t param_lists; /* lists of parameters that were checked so far */
    pthread_mutex_t memory_lock;
    double compute_seconds, comm_seconds; /* of the compute stream; written through tpi_add_seconds */
    tpi_cost issued;                      /* work of all ops issued so far */
    struct tpi_executor *executor;        /* the plan executor's lanes and events */
    void (*executor_free)(tp_ctx *ctx);   /* if set: called by tp_ctx_destroy while the backend is open */
    /* If set: called now and then while the host waits for a stream that may wait for peers. It may break the context;
     * then such waits of streams end. */
    void (*watch)(tp_ctx *ctx);
    struct tpi_nccl_comm *nccl; /* communicators over the fabric */
    struct tp_graph *capturing; /* between tp_graph_begin and tp_graph_end, else NULL */
    uint64_t captures;          /* number of the last one */
};

/* A refused call: nothing was changed. Writes the context's (ctx may be NULL) and the thread's message and returns
 * status. */
tp_status tpi_refuse(tp_ctx *ctx, tp_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A failure that breaks the context: recorded if it is the first, and the world is aborted so that peers return.
 * Returns status. */
tp_status tpi_fail(tp_ctx *ctx, tp_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Thread message only (no context at hand). */
tp_status tpi_message(tp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tpi_message_set(const char *text);

/* Of all of its mesh. */
static inline int64_t tpi_ctx_ranks(const tp_ctx *ctx)
{
    return (int64_t)ctx->mesh.tp * ctx->mesh.cp * ctx->mesh.dp * ctx->mesh.pp;
}

/* TP_OK, or the sticky failure: public calls begin with it. */
tp_status tpi_ctx_usable(tp_ctx *ctx);

/* What public calls check first: an argument that must not be NULL, and an object, made with `owner` (NULL: there is no
 * object), that must be this usable context's. what: "tp_norm_forward: layer". */
tp_status tpi_given(tp_ctx *ctx, const char *what, const void *argument);
tp_status tpi_object_usable(tp_ctx *ctx, const char *what, const tp_ctx *owner);
#define TPI_TRY_OBJECT(ctx, what, object) TPI_TRY(tpi_object_usable(ctx, what, (object) != NULL ? (object)->ctx : NULL))

/* Refuses a call that must run at once, while what is issued is captured. */
tp_status tpi_not_capturing(tp_ctx *ctx, const char *call);

/* Returns from the caller when a step fails. */
#define TPI_TRY(expression)                        \
    do {                                           \
        tp_status tpi_try_status = (expression);   \
        if (tpi_try_status != TP_OK)               \
            return tpi_try_status;                 \
    } while (0)

/* Test mode, right after creation and on all ranks alike: order ranks at issue, as devices do whose streams run behind.
 * With lane_delay_seed. */
void tpi_ctx_issue_ahead(tp_ctx *ctx);

double tpi_seconds(void); /* monotonic clock */
int tpi_usable_cores(void); /* that this thread may run on */

/* Adds to the times of tp_ctx_times; from any thread. */
void tpi_add_seconds(tp_ctx *ctx, double compute, double comm);

/* Zeroed host memory for library objects, counted as TP_MEMORY_OTHER. */
void *tpi_host_allocate(tp_ctx *ctx, size_t bytes);
void tpi_host_release(tp_ctx *ctx, void *memory, size_t bytes);

/* Host memory from the allocator (NULL or empty: the system's), 64-byte aligned, not cleared, not counted. NULL on
 * failure. */
void *tpi_raw_allocate(const tp_allocator *allocator, size_t bytes);
void tpi_raw_release(const tp_allocator *allocator, void *memory, size_t bytes);

#endif
