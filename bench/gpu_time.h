/* Times of work on a GPU, by its own events: what the host does meanwhile is not in them. */
#ifndef BENCH_GPU_TIME_H
#define BENCH_GPU_TIME_H

#include "command.h"

/* Times fn(arg), which issues on the context's compute stream. A sample is as many calls as take a millisecond; a plan
 * with most = 1 runs it once. */
tp_status bench_gpu_measure(tp_ctx *ctx, const bench_plan *plan, tp_status (*fn)(void *arg), void *arg,
                            bench_samples *samples);

/* Floating-point operations a second of a large product by cuBLASLt, the most that a GPU's GEMM is measured against.
 * tf32: that of f32 by TF32. NaN on a simulated GPU. */
tp_status bench_gpu_peak(const bench_call *call, tp_dtype dtype, bool tf32, double *flops);
/* What that is, in words. */
const char *bench_gpu_peak_text(tp_dtype dtype, bool tf32);

/* Bytes a second, read and written, of a copy within the GPU's memory. */
tp_status bench_gpu_copy_rate(const bench_call *call, double *rate);

#endif
