/* THE backend table: what a device must do. Every slot is non-NULL (a test asserts it). Ops have one slot each, named
 * as in ops.h. */
#ifndef TPI_BACKEND_H
#define TPI_BACKEND_H

#include "core/ops.h"

typedef struct tpi_timer tpi_timer;

/* A host function run in stream order; returns a status that becomes the context's failure when not TP_OK. */
typedef tp_status (*tpi_task)(tp_ctx *ctx, const void *args);

/* Where a copy's two ends are. WITHIN: device memory, also a peer's that this context reaches. UP: from the host, whose
 * memory may be used again when the call returns. SHARED: up from shared memory (allocate_shared), read when the copy
 * runs. DOWN: to the host, to be read after an event behind it. */
typedef enum tpi_copy_kind { TPI_COPY_WITHIN = 0, TPI_COPY_UP, TPI_COPY_SHARED, TPI_COPY_DOWN } tpi_copy_kind;

/* Graphs of what several contexts of one process issue (comm/graph.c). The first context begins, and all enter; then
 * their streams join the capture by waiting for an event of it. What is called `number` tells one capture from all
 * others of these contexts. */
typedef struct tpi_graph_body tpi_graph_body;
typedef struct tpi_graph_table {
    /* enters too; holders: that will release it */
    tp_status (*begin)(tp_ctx *ctx, uint64_t number, int holders, tpi_graph_body **out);
    void (*enter)(tp_ctx *ctx, uint64_t number, tpi_graph_body *body);
    void (*leave)(tp_ctx *ctx);
    /* By the first context, whose compute stream waits for all others. Refuses with the device's words; the capture is
     * over then, too. */
    tp_status (*end)(tp_ctx *ctx, tpi_graph_body *body);
    /* Gives up the capture that the context is in, for all of them, and leaves. */
    void (*drop)(tp_ctx *ctx);
    tp_status (*launch)(tp_ctx *ctx, tpi_graph_body *body); /* by the first context, on its compute stream */
    void (*release)(tp_ctx *ctx, tpi_graph_body *body);
} tpi_graph_table;

typedef struct tpi_backend {
    const char *name;
    /* open: per-context state in ctx->device_state. close undoes it, also after a failed open. */
    tp_status (*open)(tp_ctx *ctx);
    void (*close)(tp_ctx *ctx);

    void *(*allocate)(tp_ctx *ctx, size_t bytes);
    void (*release)(tp_ctx *ctx, void *memory, size_t bytes);
    /* Host memory that streams copy to and host tasks read and write. Small. */
    void *(*allocate_shared)(tp_ctx *ctx, size_t bytes);
    void (*release_shared)(tp_ctx *ctx, void *memory, size_t bytes);
    /* Whether ops of this context may read and write memory of another context of this backend on that device; makes it
     * so. Refuses with the reason. */
    tp_status (*reach)(tp_ctx *ctx, int device_index);

    /* A lane is a FIFO. inline_lane: run() executes in the caller before it returns (the CPU's compute stream). */
    tp_status (*stream_create)(tp_ctx *ctx, const char *name, bool inline_lane, tpi_stream **out);
    void (*stream_destroy)(tpi_stream *stream);
    tp_status (*stream_synchronize)(tpi_stream *stream);
    tp_status (*event_create)(tp_ctx *ctx, tpi_event **out);
    void (*event_destroy)(tpi_event *event); /* waits that were issued go on */
    tp_status (*event_record)(tpi_event *event, tpi_stream *stream);
    /* The stream waits; the caller does not. The event may be another context's, recorded by another thread. */
    tp_status (*event_wait)(tpi_event *event, tpi_stream *stream);
    tp_status (*event_synchronize)(tp_ctx *ctx, tpi_event *event); /* the caller, of `ctx`, waits within its bound */
    /* one more event_destroy until it goes; by any context */
    void (*event_share)(tpi_event *event);
    tp_status (*copy)(tpi_stream *stream, void *to, const void *from, size_t bytes, tpi_copy_kind kind);
    /* Runs a host task in stream order; args (at most TPI_TASK_BYTES) are copied. */
    tp_status (*run)(tpi_stream *stream, tpi_task task, const void *args, size_t bytes);
    /* The same also after a failure of the context: for what must be undone whatever happened. */
    tp_status (*run_anyway)(tpi_stream *stream, tpi_task task, const void *args, size_t bytes);

    /* A stopwatch in streams. mark 0 is its begin, 1 its end; read: seconds of the device between them, once both are
     * done (the stream was synchronised). */
    tp_status (*timer_create)(tp_ctx *ctx, tpi_timer **out);
    void (*timer_destroy)(tpi_timer *timer);
    tp_status (*timer_mark)(tpi_timer *timer, tpi_stream *stream, int mark);
    tp_status (*timer_read)(tpi_timer *timer, double *seconds);
    /* Names what the calling thread issues between the two, for a profiler. Nested; nothing where there is none. */
    void (*range_push)(const char *name);
    void (*range_pop)(void);

    /* Packed right operands: bytes for a [cols, inner] operand in this order (NULL: one chain), and the packing
     * itself. */
    size_t (*gemm_packed_bytes)(tp_ctx *ctx, tp_dtype dtype, int64_t cols, int64_t inner, const tpi_inner *order);
    tp_status (*gemm_pack)(tpi_stream *stream, const tpi_operand *b, int64_t cols, int64_t inner,
                           const tpi_inner *order, const tpi_packed *out);

    tp_status (*gemm)(tpi_stream *stream, const tpi_gemm_args *args);
    tp_status (*reduce)(tpi_stream *stream, const tpi_reduce_args *args);
    tp_status (*map)(tpi_stream *stream, const tpi_map_args *args);
    tp_status (*activation)(tpi_stream *stream, const tpi_activation_args *args);
    tp_status (*rope)(tpi_stream *stream, const tpi_rope_args *args);
    tp_status (*norm)(tpi_stream *stream, const tpi_norm_args *args);
    tp_status (*norm_grad)(tpi_stream *stream, const tpi_norm_grad_args *args);
    tp_status (*attention)(tpi_stream *stream, const tpi_attention_args *args);
    tp_status (*attention_grad)(tpi_stream *stream, const tpi_attention_grad_args *args);
    tp_status (*embedding)(tpi_stream *stream, const tpi_embedding_args *args);
    tp_status (*embedding_grad)(tpi_stream *stream, const tpi_embedding_grad_args *args);
    tp_status (*xent)(tpi_stream *stream, const tpi_xent_args *args);
    tp_status (*square_sum)(tpi_stream *stream, const tpi_square_sum_args *args);
    tp_status (*optimizer)(tpi_stream *stream, const tpi_optimizer_args *args);
    tp_status (*random_fill)(tpi_stream *stream, const tpi_random_fill_args *args);

    /* After the slots. */
    /* As many calls of the op of that name, none of which reads what another writes, in few launches; args are copied.
     * NULL: the op is called for each. */
    tp_status (*square_sum_list)(tpi_stream *stream, const tpi_square_sum_args *args, int count);
    tp_status (*optimizer_list)(tpi_stream *stream, const tpi_optimizer_args *args, int count);
    bool behind;      /* streams run behind the host: ranks wait for each other when they issue (docs/cuda.md, section
                       * 3) */
    bool host_memory; /* the host may read and write the context's memory */
    const struct tpi_fabric *fabric; /* comm/fabric.h; NULL: none */
    const tpi_graph_table *graphs;   /* NULL: none */
    tp_status (*peer_reduce)(tpi_stream *stream, const tpi_peer_reduce_args *args); /* NULL: none */
} tpi_backend;

#define TPI_TASK_BYTES 768

extern const tpi_backend tpi_backend_cpu;

#endif
