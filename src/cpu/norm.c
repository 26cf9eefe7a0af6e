/* LayerNorm and RMSNorm. The mean in `stats` is the row's mean rounded to f32; what rounding left over (`rest`) is
 * computed again from the row where it matters, so that rows with a large mean and a small spread keep their digits. */
#include "cpu/norm_math.h"
#include "cpu/cpu.h"
#include "cpu/tiles.h"

/* ---- forward ---- */

typedef struct norm_work {
    const tpi_norm_args *args;
    tpi_tiles tiles;
} norm_work;

static void norm_row(const tpi_norm_args *args, int64_t row)
{
    const void *x = tpi_element(args->x, args->dtype, row * args->x_stride);
    float cols = (float)args->cols, mean = args->rms ? 0.0f : tpi_row_total(x, args->dtype, args->cols) / cols;
    tpi_row_moments moments = tpi_row_moments_about(x, args->dtype, args->cols, mean);
    float rest = args->rms ? 0.0f : moments.sum / cols;
    float variance = fmaf(-rest, moments.sum, moments.squares) / cols;
    float rstd = 1.0f / sqrtf((variance < 0 ? 0.0f : variance) + args->epsilon);
    vf means = vf_set1(mean), rests = vf_set1(rest), rstds = vf_set1(rstd);

    if (args->stats) {
        args->stats[2 * row] = mean;
        args->stats[2 * row + 1] = rstd;
    }
    for (int64_t c = 0; c < args->cols; c += TPI_LANES) {
        int n = tpi_lanes_of(args->cols - c);
        vf value = vf_sub(vf_load_any(tpi_element(x, args->dtype, c), args->dtype, n), means);
        vf gain = vf_load_any(tpi_element(args->gain, args->dtype, c), args->dtype, n);

        value = vf_mul(vf_sub(value, rests), rstds);
        if (args->bias)
            value = vf_fma(value, gain, vf_load_any(tpi_element(args->bias, args->dtype, c), args->dtype, n));
        else
            value = vf_mul(value, gain);
        vf_store_any(tpi_element_of(args->y, args->dtype, row * args->y_stride + c), args->dtype, value, n);
    }
}

/* Parts of whole rows: a row is never split. */
static tpi_tiles row_tiles(int64_t rows, int64_t cols)
{
    tpi_tiles tiles = tpi_tiles_of(rows, cols < TPI_TILE_ELEMENTS ? cols : TPI_TILE_ELEMENTS);

    tiles.cols = tiles.col_step = cols;
    return tiles;
}

static void norm_part(void *arg, int64_t part, int worker)
{
    const norm_work *work = arg;
    tpi_tile tile = tpi_tile_at(&work->tiles, part);

    (void)worker;
    for (int64_t row = tile.row; row < tile.row_end; row++)
        norm_row(work->args, row);
}

tp_status CPU(norm)(tp_ctx *ctx, const void *args)
{
    norm_work work = {.args = args};

    work.tiles = row_tiles(work.args->rows, work.args->cols);
    tpi_cpu_parallel(ctx, work.tiles.parts, norm_part, &work);
    return TP_OK;
}

/* ---- backward: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gain; RMSNorm has no mean(g) ---- */

#define GRAD_COLS 64 /* columns of one part of the gain's sums: four vectors each for gain and bias */

typedef struct norm_grad_row {
    float rest, mean_g, mean_gx;
} norm_grad_row;

typedef struct norm_grad_work {
    const tpi_norm_grad_args *args;
    tpi_tiles tiles;
    int64_t col_blocks;
    norm_grad_row *row; /* [rows] */
    bool sums, dx;      /* what this pass over the rows does */
} norm_grad_work;

static norm_grad_row grad_row_sums(const tpi_norm_grad_args *args, int64_t row)
{
    const void *x = tpi_element(args->x, args->dtype, row * args->x_stride);
    const void *dy = tpi_element(args->dy, args->dtype, row * args->dy_stride);
    tpi_row_sum sum_d = tpi_row_sum_zero(), sum_g = tpi_row_sum_zero(), sum_gd = tpi_row_sum_zero();
    float cols = (float)args->cols, rstd = args->stats[2 * row + 1], total_g, total_gd;
    vf means = vf_set1(args->rms ? 0.0f : args->stats[2 * row]);
    norm_grad_row result;

    for (int64_t c = 0; c < args->cols; c += TPI_ROW_WAYS * TPI_LANES) {
        for (int way = 0; way < TPI_ROW_WAYS; way++) {
            int64_t at = c + way * TPI_LANES;
            int n = tpi_lanes_of(args->cols - at);
            vf d, g;

            if (n <= 0)
                continue;
            d = vf_sub(vf_load_any(tpi_element(x, args->dtype, at), args->dtype, n), means);
            g = vf_load_any(tpi_element(dy, args->dtype, at), args->dtype, n);
            if (args->gain) /* NULL is allowed where dx isn't wanted, whose sums these are */
                g = vf_mul(g, vf_load_any(tpi_element(args->gain, args->dtype, at), args->dtype, n));
            if (n < TPI_LANES)
                d = vf_keep_first(d, n, vf_zero());
            sum_d.way[way] = vf_add(sum_d.way[way], d);
            sum_g.way[way] = vf_add(sum_g.way[way], g);
            sum_gd.way[way] = vf_fma(g, d, sum_gd.way[way]);
        }
    }
    total_g = tpi_row_sum_total(&sum_g);
    total_gd = tpi_row_sum_total(&sum_gd);
    result.rest = args->rms ? 0.0f : tpi_row_sum_total(&sum_d) / cols;
    result.mean_g = args->rms ? 0.0f : total_g / cols;
    result.mean_gx = fmaf(-result.rest, total_g, total_gd) * rstd / cols;
    return result;
}

/* (x - mean - rest) * rstd, the same wherever it is needed. */
static inline vf normalized(const tpi_norm_grad_args *args, const norm_grad_row *sums, int64_t row, int64_t col, int n)
{
    vf x = vf_load_any(tpi_element(args->x, args->dtype, row * args->x_stride + col), args->dtype, n);
    vf d = vf_sub(x, vf_set1(args->rms ? 0.0f : args->stats[2 * row]));

    return vf_mul(vf_sub(d, vf_set1(sums->rest)), vf_set1(args->stats[2 * row + 1]));
}

static void grad_row_dx(const tpi_norm_grad_args *args, const norm_grad_row *sums, int64_t row)
{
    tp_dtype dtype = args->dtype;

    for (int64_t c = 0; c < args->cols; c += TPI_LANES) {
        int n = tpi_lanes_of(args->cols - c);
        vf g = vf_mul(vf_load_any(tpi_element(args->dy, dtype, row * args->dy_stride + c), dtype, n),
                      vf_load_any(tpi_element(args->gain, dtype, c), dtype, n));
        vf value = vf_sub(g, vf_set1(sums->mean_g));

        value = vf_fnma(normalized(args, sums, row, c, n), vf_set1(sums->mean_gx), value);
        value = vf_mul(value, vf_set1(args->stats[2 * row + 1]));
        if (args->residual)
            value = vf_add(value,
                           vf_load_any(tpi_element(args->residual, dtype, row * args->residual_stride + c), dtype, n));
        vf_store_any(tpi_element_of(args->dx, dtype, row * args->dx_stride + c), dtype, value, n);
    }
}

static void grad_rows_part(void *arg, int64_t part, int worker)
{
    const norm_grad_work *work = arg;
    tpi_tile tile = tpi_tile_at(&work->tiles, part);

    (void)worker;
    for (int64_t row = tile.row; row < tile.row_end; row++) {
        if (work->sums)
            work->row[row] = grad_row_sums(work->args, row);
        if (work->dx)
            grad_row_dx(work->args, &work->row[row], row);
    }
}

/* One column block of the gain's and bias's gradients of one virtual rank: chains over its rows. */
static void grad_gain_part(void *arg, int64_t part, int worker)
{
    const norm_grad_work *work = arg;
    const tpi_norm_grad_args *args = work->args;
    int64_t v = part / work->col_blocks, col = part % work->col_blocks * GRAD_COLS;
    tp_range rows = tp_shard_range(args->total_rows, args->virtual_count, v);
    int64_t first = rows.begin > args->first_row ? rows.begin - args->first_row : 0;
    int64_t end = rows.end - args->first_row < args->rows ? rows.end - args->first_row : args->rows;

    (void)worker;
    if (first >= end)
        return;
    for (int64_t stop = col + GRAD_COLS; col < stop && col < args->cols; col += TPI_LANES) {
        int n = tpi_lanes_of(args->cols - col);
        int64_t at = (v - args->virtual_first) * args->cols + col;
        vf gain = args->gain_grad ? vf_load_n(args->gain_grad + at, n) : vf_zero();
        vf bias = args->bias_grad ? vf_load_n(args->bias_grad + at, n) : vf_zero();

        for (int64_t row = first; row < end; row++) {
            vf dy = vf_load_any(tpi_element(args->dy, args->dtype, row * args->dy_stride + col), args->dtype, n);

            gain = vf_fma(dy, normalized(args, &work->row[row], row, col, n), gain);
            bias = vf_add(bias, dy);
        }
        if (args->gain_grad)
            vf_store_n(args->gain_grad + at, gain, n);
        if (args->bias_grad)
            vf_store_n(args->bias_grad + at, bias, n);
    }
}

tp_status CPU(norm_grad)(tp_ctx *ctx, const void *args)
{
    tpi_norm_grad_args grad = *(const tpi_norm_grad_args *)args;
    norm_grad_work work = {.args = &grad, .sums = true};
    bool gains = grad.gain_grad || grad.bias_grad;

    if (grad.rows <= 0 || grad.cols <= 0)
        return TP_OK;
    if (grad.virtual_count < 1)
        grad.virtual_count = 1;
    TPI_TRY(tpi_cpu_reserve(ctx, (size_t)grad.rows * sizeof(norm_grad_row)));
    work.row = tpi_cpu_workspace(ctx, 0);
    work.tiles = row_tiles(grad.rows, grad.cols);
    work.col_blocks = (grad.cols + GRAD_COLS - 1) / GRAD_COLS;
    /* dx may be dy: the gain's sums read dy before dx is written. */
    work.dx = grad.dx && !gains;
    tpi_cpu_parallel(ctx, work.tiles.parts, grad_rows_part, &work);
    if (!gains)
        return TP_OK;
    tpi_cpu_parallel(ctx, grad.virtual_count * work.col_blocks, grad_gain_part, &work);
    work.sums = false;
    work.dx = true;
    if (grad.dx)
        tpi_cpu_parallel(ctx, work.tiles.parts, grad_rows_part, &work);
    return TP_OK;
}
