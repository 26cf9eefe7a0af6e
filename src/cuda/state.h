/* What a context on a GPU keeps, and what the C files of the CUDA backend share. */
#ifndef TPI_CUDA_STATE_H
#define TPI_CUDA_STATE_H

#include <tp/device.h>

#include "core/stream.h"
#include "cuda/stream.h"

/* Tasks of the host that may be issued and not done; whoever issues more waits. */
#define TPI_CUDA_TASKS 64
/* Pinned and device memory that copies up and staged arrays go through: pieces used in turn. */
#define TPI_CUDA_STAGE_BYTES ((size_t)65536)
#define TPI_CUDA_STAGES 16

typedef struct tpi_cuda_state {
    tpi_cuda_device device;
    tpi_cuda_fault *fault; /* as the host addresses it */
    struct tpi_cuda_gemm_cache *gemm_cache; /* NULL until the library is asked */
    tpi_graph_body *capture; /* what is issued belongs to it; NULL: it runs */
    uint64_t capture_number; /* then; 0: none */
    int graphs;              /* that may use this context's workspaces: these are not freed then */
} tpi_cuda_state;

/* A host task's place, from its issue until it has run. */
typedef struct tpi_cuda_task {
    tp_ctx *ctx;
    tpi_task task;
    bool anyway;
    atomic_bool busy;
    _Alignas(16) unsigned char args[TPI_TASK_BYTES];
} tpi_cuda_task;

typedef struct tpi_cuda_staging {
    char *pinned, *device;               /* [TPI_CUDA_STAGES][TPI_CUDA_STAGE_BYTES]; NULL until used */
    cudaEvent_t event[TPI_CUDA_STAGES];  /* recorded when a piece may be used again */
    bool recorded[TPI_CUDA_STAGES];
    int next;
    int open, open_pieces; /* handed out, and their event not recorded yet */
    void *array;           /* for one that is longer than all pieces */
    size_t array_bytes;
} tpi_cuda_staging;

/* Device memory that a graph may use still: a workspace, or host arrays as they were when it was captured. */
typedef struct tpi_cuda_retired {
    struct tpi_cuda_retired *next;
    void *memory;
    size_t bytes;
} tpi_cuda_retired;

typedef struct tpi_cuda_stream {
    tpi_stream base;
    char name[16];
    cudaStream_t handle; /* NULL in a dry run */
    tpi_cuda_task *tasks; /* [TPI_CUDA_TASKS] */
    uint64_t tasks_issued;
    void *workspace;
    size_t workspace_bytes;
    tpi_cuda_retired *retired;
    char *kept; /* what is left of the last piece for host arrays */
    size_t kept_bytes;
    tpi_cuda_staging staging;
} tpi_cuda_stream;

tpi_cuda_state *tpi_cuda_state_of(const tp_ctx *ctx);

/* Makes the context's device current. */
tp_status tpi_cuda_enter(tp_ctx *ctx);

/* TP_OK, or breaks the context with CUDA's words. */
tp_status tpi_cuda_call(tp_ctx *ctx, cudaError_t error, const char *what);

/* Polls until `query` says something other than "not ready" or the context's bound has passed; what: for the
 * message. */
typedef cudaError_t (*tpi_cuda_query)(void *object);
tp_status tpi_cuda_poll(tp_ctx *ctx, tpi_cuda_query query, void *object, const char *what);

/* device.c */
tp_status tpi_cuda_open(tp_ctx *ctx);
void tpi_cuda_close(tp_ctx *ctx);
void *tpi_cuda_allocate(tp_ctx *ctx, size_t bytes);
void tpi_cuda_release(tp_ctx *ctx, void *memory, size_t bytes);
void *tpi_cuda_allocate_shared(tp_ctx *ctx, size_t bytes);
void tpi_cuda_release_shared(tp_ctx *ctx, void *memory, size_t bytes);
tp_status tpi_cuda_reach(tp_ctx *ctx, int device_index);
/* The first wrong input that a kernel found, as a failure of the context. After a synchronisation. */
tp_status tpi_cuda_see_fault(tp_ctx *ctx);

/* stream.c */
tp_status tpi_cuda_stream_create(tp_ctx *ctx, const char *name, bool inline_lane, tpi_stream **out);
void tpi_cuda_stream_destroy(tpi_stream *stream);
/* What graphs may use: keeps it until there is none, and frees all of it, which nothing under way uses. */
/* Device memory of the stream for `bytes`, grown where `held` is less: what it was before is not kept. `what` names
 * it. */
tp_status tpi_cuda_stream_grow(tpi_cuda_stream *stream, void **memory, size_t *held, size_t bytes, const char *what);
tp_status tpi_cuda_stream_retire(tpi_cuda_stream *stream, void *memory, size_t bytes);
void tpi_cuda_stream_forget(tpi_cuda_stream *stream);
tp_status tpi_cuda_stream_synchronize(tpi_stream *stream);
tp_status tpi_cuda_event_create(tp_ctx *ctx, tpi_event **out);
void tpi_cuda_event_destroy(tpi_event *event);
tp_status tpi_cuda_event_record(tpi_event *event, tpi_stream *stream);
tp_status tpi_cuda_event_wait(tpi_event *event, tpi_stream *stream);
tp_status tpi_cuda_event_synchronize(tp_ctx *ctx, tpi_event *event);
void tpi_cuda_event_share(tpi_event *event);

/* timer.c */
tp_status tpi_cuda_timer_create(tp_ctx *ctx, tpi_timer **out);
void tpi_cuda_timer_destroy(tpi_timer *timer);
tp_status tpi_cuda_timer_mark(tpi_timer *timer, tpi_stream *stream, int mark);
tp_status tpi_cuda_timer_read(tpi_timer *timer, double *seconds);

/* graph.c */
extern const tpi_graph_table tpi_graph_table_cuda;
/* Around every call that adds to a stream: while the context is in a capture, one rank at a time adds to it. A failure
 * if another rank gave it up; the second is called after success only. */
tp_status tpi_cuda_issue_begin(tp_ctx *ctx);
void tpi_cuda_issue_end(tp_ctx *ctx);
/* Before the host waits for something: refused in a capture, which a broken context gives up. */
tp_status tpi_cuda_leave_capture(tp_ctx *ctx, const char *what);

/* task.c */
tp_status tpi_cuda_run(tpi_stream *stream, tpi_task task, const void *args, size_t bytes);
tp_status tpi_cuda_run_anyway(tpi_stream *stream, tpi_task task, const void *args, size_t bytes);

/* staging.c */
tp_status tpi_cuda_copy(tpi_stream *stream, void *to, const void *from, size_t bytes, tpi_copy_kind kind);
void tpi_cuda_staging_free(tpi_cuda_stream *stream);

/* describe.c */
void tpi_cuda_describe(int index, tp_device_info *out);

extern const tpi_backend tpi_backend_cuda;

/* nccl.c */
extern const struct tpi_fabric tpi_fabric_nccl;

#endif
