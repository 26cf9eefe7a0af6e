/* Sum of squares by virtual ranks, for gradient norms. */
#include "cpu/cpu.h"
#include "cpu/simd.h"
#include "cpu/tree.h"

typedef struct square_sum_work {
    const tpi_square_sum_args *args;
    const tpi_inner *order;
    double block[TPI_MAX_BLOCKS];
} square_sum_work;

static float row_squares(const float *x, int64_t cols)
{
    vf sum = vf_zero();
    int64_t c = 0;

    for (; c + TPI_LANES <= cols; c += TPI_LANES) {
        vf value = vf_load(x + c);

        sum = vf_fma(value, value, sum);
    }
    if (c < cols) {
        vf value = vf_load_n(x + c, (int)(cols - c));

        sum = vf_fma(value, value, sum);
    }
    return vf_sum(sum);
}

static void square_sum_part(void *arg, int64_t part, int worker)
{
    square_sum_work *work = arg;
    const tpi_square_sum_args *args = work->args;
    double sum = 0;

    (void)worker;
    for (int s = 0; s < work->order->segments; s++) {
        int64_t begin = work->order->segment[s].begin, length = work->order->segment[s].length;
        int64_t row = args->dim == 0 ? begin : 0, row_end = args->dim == 0 ? begin + length : args->rows;
        int64_t col = args->dim == 0 ? 0 : begin, cols = args->dim == 0 ? args->cols : length;

        if (work->order->segment[s].block != part)
            continue;
        for (; row < row_end; row++)
            sum += row_squares(args->x + row * args->stride + col, cols);
    }
    work->block[part] = sum;
}

tp_status CPU(square_sum)(tp_ctx *ctx, const void *args)
{
    square_sum_work work = {.args = args};
    tpi_inner whole = {.blocks = 1, .segments = 1};
    float block[TPI_MAX_BLOCKS];

    whole.segment[0].length = work.args->dim == 0 ? work.args->rows : work.args->cols;
    work.order = work.args->order ? work.args->order : &whole;
    tpi_cpu_parallel(ctx, work.order->blocks, square_sum_part, &work);
    for (int i = 0; i < work.order->blocks; i++)
        block[i] = (float)work.block[i];
    work.args->result[0] = tpi_tree_sum(block, work.order->blocks);
    return TP_OK;
}
