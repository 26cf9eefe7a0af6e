/* Work for mutants of synchronisation: small programs that together execute every barrier of the kernels and every kind
 * of wait of a stream. */
#ifndef TPT_CUDA_SYNC_WORK_H
#define TPT_CUDA_SYNC_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "../../gpusim/include/gpusim/gpusim.h"
#include "core/context.h"

/* Device memory of one context, and whether all went well so far. */
typedef struct tpt_memory {
    tp_ctx *ctx;
    tp_status status;
    int count;
    struct {
        void *data;
        size_t bytes;
    } piece[32];
} tpt_memory;

/* Memory that begins as `host`, or as bytes 0x5a where that is NULL; NULL once something failed. */
void *tpt_memory_of(tpt_memory *memory, const void *host, size_t bytes);
void *tpt_memory_normal(tpt_memory *memory, tp_dtype dtype, int64_t count, uint64_t seed);
/* A fingerprint of all of it, continued from `hash`; the memory is released. */
uint64_t tpt_memory_end(tpt_memory *memory, uint64_t hash);

/* What a program left behind. Lies in memory that its process shares with the test's. */
enum { TPT_MOST_SITES = 1024, TPT_MOST_THREADS = 4, TPT_MOST_PARTS = 32, TPT_MOST_WAITS = 4096, TPT_SITE_BYTES = 128 };

typedef struct tpt_outcome {
    bool finished;
    tp_status status;
    int reports;
    uint64_t hash;
    char why[256];                   /* the first report, or the failure */
    double seconds;
    bool executed[TPT_MOST_SITES];   /* barriers */
    bool idle[TPT_MOST_THREADS][TPT_MOST_WAITS]; /* waits that order nothing that others don't, by thread */
    char site[TPT_MOST_THREADS][TPT_MOST_WAITS][TPT_SITE_BYTES]; /* which of the library's waits each is */
    int parts;                       /* of the work: waits of thread t + 1 from first[t] to first[t] of the next part. A
                                      * name again: the same between others */
    const char *part[TPT_MOST_PARTS];
    int64_t first[TPT_MOST_PARTS + 1][TPT_MOST_THREADS];
} tpt_outcome;

/* One program. */
typedef struct tpt_work {
    char name[64];
    gpusim_options options; /* what it needs of them: multiprocessors */
    void (*run)(const struct tpt_work *work, tpt_outcome *outcome);
    int number;  /* the family's */
    int threads; /* ranks: each issues from a thread of its own */
    bool in_samples; /* waits: else only where all are tried */
    const void *arg;
} tpt_work;

/* Where a rank is in its program. */
typedef struct tpt_parts {
    tpt_outcome *outcome;
    int rank;
    bool counts; /* this turn does: memory has grown by then, and something comes after it */
    int count;
} tpt_parts;

/* From here on, waits are this part's. NULL: nobody's. */
void tpt_part(tpt_parts *parts, const char *name);

/* Runs ranks that are processes over NCCL, with a device each; the first failure. */
tp_status tpt_run_processes(int ranks, tp_status (*fn)(tp_ctx *ctx, void *arg), void *arg);

/* Kernels: number 0, 1, ...; false beyond the last. Those of one rank (sync_kernels.c), then those that wait for peers
 * (sync_peers.c). */
bool tpt_kernel_work(int number, tpt_work *out);
bool tpt_peer_work(int number, tpt_work *out);
/* Waits: number 0, 1, ...; false beyond the last. Collectives and layers (sync_waits.c), then steps of a model
 * (sync_steps.c). */
bool tpt_wait_work(int number, tpt_work *out);
bool tpt_step_work(int number, tpt_work *out);

#endif
