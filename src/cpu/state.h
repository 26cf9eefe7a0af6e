/* What a CPU context keeps, and what the files of the CPU backend share. */
#ifndef TPI_CPU_STATE_H
#define TPI_CPU_STATE_H

#include "core/stream.h"
#include "cpu/counter.h"
#include "cpu/cpu.h"

/* Memory of one worker or lane. */
typedef struct tpi_cpu_workspace_slot {
    void *memory;
    size_t bytes;
} tpi_cpu_workspace_slot;

typedef struct tpi_cpu_pool tpi_cpu_pool;

typedef struct tpi_cpu_state {
    tpi_cpu_pool *pool;                /* NULL: one thread */
    int64_t spin_ns;                   /* how long threads of the pool spin for each other before they sleep */
    int64_t lane_spin_ns;              /* the same of and for lanes, threads besides those that compute: who spins may
                                        * hold the core that the other needs */
    tpi_cpu_workspace_slot *workspace; /* [threads] */
    uint64_t streams_made;             /* numbers the delay seeds of test mode */
} tpi_cpu_state;

/* The memory that the calling thread's ops use as worker `worker`. */
tpi_cpu_workspace_slot *tpi_cpu_slot(const tp_ctx *ctx, int worker);
void tpi_cpu_slot_free(tp_ctx *ctx, tpi_cpu_workspace_slot *slot);

tp_status tpi_cpu_pool_create(tp_ctx *ctx, int threads, tpi_cpu_pool **out);
void tpi_cpu_pool_destroy(tp_ctx *ctx, tpi_cpu_pool *pool);

/* Workspace of the worker lane that the calling thread is; NULL for every other thread and for the compute stream's
 * lane. */
tpi_cpu_workspace_slot *tpi_cpu_lane_slot(void);

/* A thread with all signals blocked: handlers stay with the caller's threads. */
int tpi_cpu_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

/* The backend's slots that stream.c fills. */
tp_status tpi_cpu_stream_create(tp_ctx *ctx, const char *name, bool inline_lane, tpi_stream **out);
void tpi_cpu_stream_destroy(tpi_stream *stream);
tp_status tpi_cpu_stream_synchronize(tpi_stream *stream);
tp_status tpi_cpu_event_create(tp_ctx *ctx, tpi_event **out);
void tpi_cpu_event_destroy(tpi_event *event);
tp_status tpi_cpu_event_record(tpi_event *event, tpi_stream *stream);
tp_status tpi_cpu_event_wait(tpi_event *event, tpi_stream *stream);
tp_status tpi_cpu_event_synchronize(tp_ctx *ctx, tpi_event *event);
void tpi_cpu_event_share(tpi_event *event);
tp_status tpi_cpu_copy(tpi_stream *stream, void *to, const void *from, size_t bytes, tpi_copy_kind kind);
tp_status tpi_cpu_run(tpi_stream *stream, tpi_task task, const void *args, size_t bytes);
tp_status tpi_cpu_run_anyway(tpi_stream *stream, tpi_task task, const void *args, size_t bytes);

/* timer.c */
tp_status tpi_cpu_timer_create(tp_ctx *ctx, tpi_timer **out);
void tpi_cpu_timer_destroy(tpi_timer *timer);
tp_status tpi_cpu_timer_mark(tpi_timer *timer, tpi_stream *stream, int mark);
tp_status tpi_cpu_timer_read(tpi_timer *timer, double *seconds);

/* The best set that this machine has. */
tp_isa tpi_cpu_best_isa(void);

#endif
