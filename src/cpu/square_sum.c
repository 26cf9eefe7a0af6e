/* Sum of squares by virtual ranks, for gradient norms. */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/simd.h"
#include "cpu/tree.h"

typedef struct square_sum_work {
    const tpi_square_sum_args *args;
    const tpi_inner *order;
    int64_t parts; /* blocks, or fewer of several blocks of columns each; one more looks at the rest */
    double block[TPI_MAX_BLOCKS];
    float rest; /* 0, or NaN if an element that is not counted is not finite */
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

/* 0 if all are finite, else NaN. */
static float row_zeros(const float *x, int64_t cols)
{
    vf sum = vf_zero();
    int64_t c = 0;

    for (; c + TPI_LANES <= cols; c += TPI_LANES)
        sum = vf_fma(vf_load(x + c), vf_zero(), sum);
    if (c < cols)
        sum = vf_fma(vf_load_n(x + c, (int)(cols - c)), vf_zero(), sum);
    return vf_sum(sum);
}

/* The first stretch at or after `from` that no segment has; false if there is none below `end`. */
static bool next_rest(const tpi_inner *order, int64_t from, int64_t end, int64_t *begin, int64_t *length)
{
    for (int s = 0; s < order->segments; s++) /* a segment over `from` moves it, which others may be over then */
        if (order->segment[s].begin <= from && from < order->segment[s].begin + order->segment[s].length) {
            from = order->segment[s].begin + order->segment[s].length;
            s = -1;
        }
    if (from >= end)
        return false;
    for (int s = 0; s < order->segments; s++)
        if (order->segment[s].length > 0 && order->segment[s].begin > from && order->segment[s].begin < end)
            end = order->segment[s].begin;
    *begin = from;
    *length = end - from;
    return true;
}

/* Replicas that other ranks count: what is not finite there must show too, or ranks would go different ways. */
static void look_at_rest(square_sum_work *work)
{
    const tpi_square_sum_args *args = work->args;
    int64_t end = args->dim == 0 ? args->rows : args->cols, at = 0, begin, length;

    work->rest = 0;
    for (; next_rest(work->order, at, end, &begin, &length); at = begin + length) {
        int64_t row = args->dim == 0 ? begin : 0, row_end = args->dim == 0 ? begin + length : args->rows;
        int64_t col = args->dim == 0 ? 0 : begin, cols = args->dim == 0 ? args->cols : length;

        for (; row < row_end; row++)
            work->rest += row_zeros(args->x + row * args->stride + col, cols);
    }
}

/* One block, segment by segment. */
static double block_squares(const square_sum_work *work, int block)
{
    const tpi_square_sum_args *args = work->args;
    double sum = 0;

    for (int s = 0; s < work->order->segments; s++) {
        int64_t begin = work->order->segment[s].begin, length = work->order->segment[s].length;
        int64_t row = args->dim == 0 ? begin : 0, row_end = args->dim == 0 ? begin + length : args->rows;
        int64_t col = args->dim == 0 ? 0 : begin, cols = args->dim == 0 ? args->cols : length;

        if (work->order->segment[s].block != block)
            continue;
        for (; row < row_end; row++)
            sum += row_squares(args->x + row * args->stride + col, cols);
    }
    return sum;
}

/* Blocks [begin, end) of columns, side by side, so that memory is read in order. */
static void column_squares(square_sum_work *work, int begin, int end)
{
    const tpi_square_sum_args *args = work->args;
    const tpi_inner *order = work->order;
    double sum[TPI_MAX_BLOCKS] = {0};

    for (int64_t row = 0; row < args->rows; row++)
        for (int s = 0; s < order->segments; s++) {
            int block = order->segment[s].block;

            if (block >= begin && block < end)
                sum[block] +=
                    row_squares(args->x + row * args->stride + order->segment[s].begin, order->segment[s].length);
        }
    for (int block = begin; block < end; block++)
        work->block[block] = sum[block];
}

/* Whether each block is one stretch of columns: then its sum is over rows in order, whatever is done between them. */
static bool has_column_blocks(const square_sum_work *work)
{
    const tpi_inner *order = work->order;

    for (int s = 1; s < order->segments; s++)
        if (order->segment[s].block == order->segment[s - 1].block)
            return false;
    return work->args->dim == 1;
}

static void square_sum_part(void *arg, int64_t part, int worker)
{
    square_sum_work *work = arg;
    int blocks = work->order->blocks;

    (void)worker;
    if (part == work->parts)
        look_at_rest(work);
    else if (work->parts == blocks)
        work->block[part] = block_squares(work, (int)part);
    else
        column_squares(work, (int)(blocks * part / work->parts), (int)(blocks * (part + 1) / work->parts));
}

tp_status CPU(square_sum)(tp_ctx *ctx, const void *args)
{
    square_sum_work work = {.args = args};
    tpi_inner whole = {.blocks = 1, .segments = 1};
    float block[TPI_MAX_BLOCKS];

    whole.segment[0].length = work.args->dim == 0 ? work.args->rows : work.args->cols;
    work.order = work.args->order ? work.args->order : &whole;
    work.parts = work.order->blocks;
    if (has_column_blocks(&work) && tpi_cpu_workers(ctx) < work.parts)
        work.parts = tpi_cpu_workers(ctx);
    tpi_cpu_parallel(ctx, work.parts + 1, square_sum_part, &work);
    for (int i = 0; i < work.order->blocks; i++)
        block[i] = (float)work.block[i];
    work.args->result[0] = tpi_tree_sum(block, work.order->blocks);
    if (!(work.rest == 0))
        work.args->result[0] = NAN;
    return TP_OK;
}
