/* What the GEMM tests on the GPU share: a case, its arrays on both sides, and the op's arguments. */
#ifndef TPT_CUDA_GEMM_CASE_H
#define TPT_CUDA_GEMM_CASE_H

#include <tp/device.h>

#include "cuda/cuda_support.h"

enum {
    WITH_BIAS = 1,
    WITH_PRE = 2,
    WITH_ACT_INPUT = 4,
    WITH_RESIDUAL = 8,
    WITH_ACCUMULATE = 16,
    WITH_ROW_SUMS = 32,
    WITH_DROPOUT = 64
};

typedef struct gemm_case {
    tp_dtype dtype, c_dtype, bias_dtype;
    int64_t rows, cols, inner;
    bool a_columns, b_columns; /* the outer stride is 1 */
    int64_t gap;               /* between lines */
    unsigned with;
    tpi_activation activation;
    const tpi_inner *order;
    bool tf32; /* the GPU may use it: tolerances are its own */
} gemm_case;

typedef struct gemm_arrays {
    tpt_pair a, b, c, bias, pre, act_input, residual, row_sums;
} gemm_arrays;

static inline int64_t line_of(const gemm_case *it, int64_t outer, bool columns)
{
    return (columns ? outer : it->inner) + it->gap;
}

/* Elements up to the last one of the last line: no gap behind it. */
static inline int64_t lines_of(const gemm_case *it, int64_t outer, bool columns)
{
    int64_t lines = columns ? it->inner : outer;

    return lines > 0 ? line_of(it, outer, columns) * lines - it->gap : 0;
}

static inline gemm_arrays make_arrays(tpt_sides *sides, const gemm_case *it)
{
    int64_t a = lines_of(it, it->rows, it->a_columns), b = lines_of(it, it->cols, it->b_columns);
    int64_t c = it->rows * (it->cols + it->gap) - it->gap;
    gemm_arrays arrays = {.a = tpt_pair_uniform(sides, it->dtype, a, 1, -1, 1),
                          .b = tpt_pair_uniform(sides, it->dtype, b, 2, -1, 1),
                          .bias = tpt_pair_uniform(sides, it->bias_dtype, it->cols, 3, -1, 1),
                          .pre = tpt_pair_array(sides, NULL, it->c_dtype, c),
                          .act_input = tpt_pair_uniform(sides, it->c_dtype, c, 4, -2, 2),
                          .residual = tpt_pair_uniform(sides, it->c_dtype, c, 5, -2, 2),
                          .row_sums = tpt_pair_uniform(sides, TP_DTYPE_F32, it->rows, 6, -1, 1)};

    arrays.c = it->with & WITH_ACCUMULATE ? tpt_pair_uniform(sides, it->c_dtype, c, 7, -1, 1)
                                          : tpt_pair_array(sides, NULL, it->c_dtype, c);
    return arrays;
}

static inline tpi_operand operand(const gemm_case *it, const char *data, int64_t outer, bool columns)
{
    int64_t line = line_of(it, outer, columns);

    return (tpi_operand){data, it->dtype, columns ? 1 : line, columns ? line : 1};
}

static inline tpi_gemm_args args_of(const gemm_case *it, const gemm_arrays *arrays, int side)
{
    int64_t line = it->cols + it->gap;
    tpi_gemm_args args = {.rows = it->rows,
                          .cols = it->cols,
                          .inner = it->inner,
                          .a = operand(it, arrays->a.at[side], it->rows, it->a_columns),
                          .b = operand(it, arrays->b.at[side], it->cols, it->b_columns),
                          .order = it->order,
                          .c = arrays->c.at[side],
                          .c_dtype = it->c_dtype,
                          .c_stride = line,
                          .accumulate = it->with & WITH_ACCUMULATE,
                          .activation = it->activation,
                          .first_row = 3};

    if (it->with & WITH_BIAS) {
        args.bias = arrays->bias.at[side];
        args.bias_dtype = it->bias_dtype;
    }
    if (it->with & WITH_PRE) {
        args.pre = arrays->pre.at[side];
        args.pre_stride = line;
    }
    if (it->with & WITH_ACT_INPUT) {
        args.act_input = arrays->act_input.at[side];
        args.act_input_stride = line;
    }
    if (it->with & WITH_RESIDUAL) {
        args.residual = arrays->residual.at[side];
        args.residual_stride = line;
    }
    if (it->with & WITH_ROW_SUMS)
        args.row_sums = (float *)arrays->row_sums.at[side];
    if (it->with & WITH_DROPOUT) {
        args.dropout = 0.25f;
        args.dropout_key = (tp_random_key){11, 0x123456789abcdefu};
    }
    return args;
}

static inline gemm_case plain(tp_dtype dtype, int64_t rows, int64_t cols, int64_t inner)
{
    return (gemm_case){.dtype = dtype,
                       .c_dtype = TP_DTYPE_F32,
                       .bias_dtype = TP_DTYPE_F32,
                       .rows = rows,
                       .cols = cols,
                       .inner = inner};
}

/* Enough of the largest tiles to fill the device, so that they are taken; all can be read by vectors. */
static inline gemm_case filling(tp_dtype dtype, int64_t inner)
{
    tp_device_info info;

    cr_assert_eq(tp_device_describe(TP_DEVICE_CUDA, 0, TPT_CUDA_PLUGIN, &info), TP_OK, "%s", tp_last_message());
    return plain(dtype, 248, (info.simulated ? 2 : 96) * 256 - 8, inner);
}

static inline tpi_inner eight_blocks(int64_t inner)
{
    tpi_inner order = {.blocks = 8};

    for (int v = 0; v < 8; v++) {
        tp_range range = tp_shard_range(inner, 8, v);

        if (range.end > range.begin) {
            order.segment[order.segments].block = v;
            order.segment[order.segments].begin = range.begin;
            order.segment[order.segments++].length = range.end - range.begin;
        }
    }
    return order;
}

/* Both sides compute the case, and agree within tolerance. */
void gemm_check(tpt_sides *sides, const gemm_case *it);
/* They did. cpu: the CPU's arguments. */
void gemm_compare(tpt_sides *sides, const gemm_case *it, const gemm_arrays *arrays, const tpi_gemm_args *cpu);

/* The CPU beside a GPU with TP_SUM_FAST. */
void gemm_open_fast(tpt_sides *sides, bool tf32);

#endif
