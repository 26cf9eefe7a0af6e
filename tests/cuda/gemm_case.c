#include "cuda/gemm_case.h"

#include "cuda/gpus.h"

/* Largest sum of |a b| of an element. */
static double magnitude_of(const gemm_case *it, const tpi_gemm_args *cpu)
{
    double largest = 0;

    for (int64_t r = 0; r < it->rows; r++)
        for (int64_t c = 0; c < it->cols; c++) {
            double sum = 0;

            for (int64_t k = 0; k < it->inner; k++)
                sum += fabs(tpt_get(cpu->a.data, it->dtype, r * cpu->a.outer_stride + k * cpu->a.inner_stride) *
                            tpt_get(cpu->b.data, it->dtype, c * cpu->b.outer_stride + k * cpu->b.inner_stride));
            largest = fmax(largest, sum);
        }
    return largest;
}

/* Bound of an f32 sum of the case's operands, stored as `dtype`. */
static double bound(const gemm_case *it, tp_dtype dtype, int64_t inner, double magnitude)
{
    return it->tf32 && it->dtype == TP_DTYPE_F32 ? tpt_tolerance_tf32(inner, magnitude)
                                                 : tpt_tolerance(dtype, inner, magnitude);
}

/* How far two results may lie apart: each is off by a bound that grows with the steepest slope of the epilogue. */
void gemm_compare(tpt_sides *sides, const gemm_case *it, const gemm_arrays *arrays, const tpi_gemm_args *cpu)
{
    double sum = magnitude_of(it, cpu) + 1, slope = it->activation == TPI_ACT_RELU2 ? 2 * sum : 1.2;
    double value = sum * (it->with & WITH_ACT_INPUT ? 4 : slope);

    if (it->with & WITH_DROPOUT)
        value /= 0.75;
    if (it->with & WITH_PRE)
        tpt_pair_near(sides, "pre", &arrays->pre, it->c_dtype, 2 * bound(it, it->c_dtype, it->inner + 8, sum));
    if (it->with & WITH_ROW_SUMS)
        tpt_pair_near(sides, "row_sums", &arrays->row_sums, TP_DTYPE_F32,
                      2 * bound(it, TP_DTYPE_F32, it->inner, (double)it->inner + 1));
    tpt_pair_near(sides, "c", &arrays->c, it->c_dtype, 2 * bound(it, it->c_dtype, it->inner + 8, value + 2));
}

void gemm_check(tpt_sides *sides, const gemm_case *it)
{
    gemm_arrays arrays = make_arrays(sides, it);
    tpi_gemm_args args[TPT_SIDES];

    for (int side = 0; side < TPT_SIDES; side++) {
        args[side] = args_of(it, &arrays, side);
        TPT_ISSUE(sides, side, tpi_gemm, &args[side]);
    }
    gemm_compare(sides, it, &arrays, &args[TPT_CPU]);
    tpt_sides_reset(sides);
}

void gemm_open_fast(tpt_sides *sides, bool tf32)
{
    tp_ctx_desc desc = {
        .threads = 1, .device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .sum_order = TP_SUM_FAST, .tf32 = tf32};

    tpt_sides_open(sides);
    tp_ctx_destroy(sides->ctx[TPT_GPU]);
    cr_assert_eq(tp_ctx_create(&desc, &sides->ctx[TPT_GPU]), TP_OK, "%s", tp_last_message());
}
