/* Inside the CPU backend: the per-instruction-set op table, the thread pool and per-worker memory.
 *
 * Op files (gemm.c norm.c attention.c activation.c map.c reduce.c rope.c embedding.c xent.c optimizer.c random_fill.c
 * square_sum.c) are compiled once an instruction set: CMake defines TPI_ISA_SUFFIX (portable, avx2, avx512,
 * avx512_bf16) and the flags. Each defines whole-op tasks named with CPU(name), e.g. tpi_cpu_norm_avx2. All vector code
 * goes through simd.h, whose 16 lanes mean the same on every set; GEMM's and attention's inner kernels may use
 * intrinsics, and keep the bits. table.c, compiled once a set too, gathers the tasks. */
#ifndef TPI_CPU_H
#define TPI_CPU_H

#include "core/context.h"

#define TPI_PASTE_(a, b) a##_##b
#define TPI_PASTE(a, b) TPI_PASTE_(a, b)
#define CPU(name) TPI_PASTE(tpi_cpu_##name, TPI_ISA_SUFFIX)

/* Whole-op tasks; args point to the op's args struct (ops.h). Called in the executing thread with the default MXCSR. */
typedef struct tpi_cpu_table {
    tpi_task gemm, reduce, map, activation, rope, norm, norm_grad, attention, attention_grad, embedding, embedding_grad,
        xent, square_sum, optimizer, random_fill, gemm_pack;
    size_t (*gemm_packed_bytes)(tp_dtype dtype, int64_t cols, int64_t inner, const tpi_inner *order);
    /* out = left + right of a floating dtype, as reduce gives it; for few elements, where reduce's way to its loop
     * counts. out may be an input. */
    void (*sum_pair)(tp_dtype dtype, void *out, const void *left, const void *right, int64_t elements);
} tpi_cpu_table;

/* What gemm_pack's task gets. */
typedef struct tpi_cpu_gemm_pack_args {
    tpi_operand b;
    int64_t cols, inner;
    const tpi_inner *order;
    tpi_packed out;
} tpi_cpu_gemm_pack_args;

const tpi_cpu_table *tpi_cpu_table_of(const tp_ctx *ctx);

#ifdef TPI_ISA_SUFFIX
/* This set's tasks. */
tp_status CPU(gemm)(tp_ctx *ctx, const void *args);
tp_status CPU(reduce)(tp_ctx *ctx, const void *args);
tp_status CPU(map)(tp_ctx *ctx, const void *args);
tp_status CPU(activation)(tp_ctx *ctx, const void *args);
tp_status CPU(rope)(tp_ctx *ctx, const void *args);
tp_status CPU(norm)(tp_ctx *ctx, const void *args);
tp_status CPU(norm_grad)(tp_ctx *ctx, const void *args);
tp_status CPU(attention)(tp_ctx *ctx, const void *args);
tp_status CPU(attention_grad)(tp_ctx *ctx, const void *args);
tp_status CPU(embedding)(tp_ctx *ctx, const void *args);
tp_status CPU(embedding_grad)(tp_ctx *ctx, const void *args);
tp_status CPU(xent)(tp_ctx *ctx, const void *args);
tp_status CPU(square_sum)(tp_ctx *ctx, const void *args);
tp_status CPU(optimizer)(tp_ctx *ctx, const void *args);
tp_status CPU(random_fill)(tp_ctx *ctx, const void *args);
tp_status CPU(gemm_pack)(tp_ctx *ctx, const void *args);
void CPU(sum_pair)(tp_dtype dtype, void *out, const void *left, const void *right, int64_t elements);
size_t CPU(gemm_packed_bytes)(tp_dtype dtype, int64_t cols, int64_t inner, const tpi_inner *order);
extern const tpi_cpu_table CPU(table);
#endif

/* Runs an op's task on a stream; its seconds count as compute if the stream is the compute stream. */
tp_status tpi_cpu_launch(tpi_stream *stream, tpi_task task, const void *args, size_t bytes);

/* Calls fn(arg, part, worker) for every part in [0, parts), on the rank's threads (the caller is worker 0); returns
 * when all are done. Parts must be independent: results may not depend on which worker ran one. parts <= 0: nothing. */
typedef void (*tpi_cpu_part)(void *arg, int64_t part, int worker);
void tpi_cpu_parallel(tp_ctx *ctx, int64_t parts, tpi_cpu_part fn, void *arg);
int tpi_cpu_workers(const tp_ctx *ctx);

/* On a worker lane other than the compute stream, tpi_cpu_parallel runs in the lane alone (worker 0 of 1) and the
 * workspace is the lane's own, so ops of different lanes don't share memory. */

/* Memory of one worker, kept and grown between calls; 64-byte aligned, contents undefined. All workers' memory must be
 * reserved before the parallel call: tpi_cpu_reserve makes at least `bytes` available to each (TP_ERR_MEMORY through
 * tpi_fail). */
tp_status tpi_cpu_reserve(tp_ctx *ctx, size_t bytes);
void *tpi_cpu_workspace(tp_ctx *ctx, int worker);

#endif
