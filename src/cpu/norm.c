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

/* What a row is normalised with. */
typedef struct norm_factors {
    vf means, rests, rstds;
} norm_factors;

TPI_ROW_INLINE void norm_vector(const tpi_norm_args *args, const norm_factors *with, int64_t row, int64_t c, int n,
                                const tp_dtype dtype)
{
    vf value = vf_sub(vf_load_any(tpi_element(args->x, dtype, row * args->x_stride + c), dtype, n), with->means);
    vf gain = vf_load_any(tpi_element(args->gain, dtype, c), dtype, n);

    value = vf_mul(vf_sub(value, with->rests), with->rstds);
    if (args->bias)
        value = vf_fma(value, gain, vf_load_any(tpi_element(args->bias, dtype, c), dtype, n));
    else
        value = vf_mul(value, gain);
    vf_store_any(tpi_element_of(args->y, dtype, row * args->y_stride + c), dtype, value, n);
}

/* `dtype` is a constant in each copy. */
TPI_ROW_INLINE void norm_row_of(const tpi_norm_args *args, int64_t row, const tp_dtype dtype)
{
    const void *x = tpi_element(args->x, dtype, row * args->x_stride);
    float cols = (float)args->cols, mean = args->rms ? 0.0f : tpi_row_total(x, dtype, args->cols) / cols;
    tpi_row_moments moments = tpi_row_moments_about(x, dtype, args->cols, mean);
    float rest = args->rms ? 0.0f : moments.sum / cols;
    float variance = fmaf(-rest, moments.sum, moments.squares) / cols;
    float rstd = 1.0f / sqrtf((variance < 0 ? 0.0f : variance) + args->epsilon);
    norm_factors with = {vf_set1(mean), vf_set1(rest), vf_set1(rstd)};
    int64_t c = 0;

    if (args->stats) {
        args->stats[2 * row] = mean;
        args->stats[2 * row + 1] = rstd;
    }
    for (; c + TPI_LANES <= args->cols; c += TPI_LANES)
        norm_vector(args, &with, row, c, TPI_LANES, dtype);
    if (c < args->cols)
        norm_vector(args, &with, row, c, (int)(args->cols - c), dtype);
}

static void norm_row(const tpi_norm_args *args, int64_t row)
{
    switch (args->dtype) {
    case TP_DTYPE_BF16: norm_row_of(args, row, TP_DTYPE_BF16); return;
    case TP_DTYPE_F16: norm_row_of(args, row, TP_DTYPE_F16); return;
    default: norm_row_of(args, row, TP_DTYPE_F32);
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

typedef struct grad_sums {
    tpi_row_sum d, g, gd;
} grad_sums;

TPI_ROW_INLINE void grad_sums_step(const tpi_norm_grad_args *args, grad_sums *sums, int64_t row, int64_t c, vf means,
                                   const tp_dtype dtype, const bool full)
{
#pragma GCC unroll 4
    for (int way = 0; way < TPI_ROW_WAYS; way++) {
        int64_t at = c + way * TPI_LANES;
        int n = full ? TPI_LANES : tpi_lanes_of(args->cols - at);
        vf d, g;

        if (n <= 0)
            continue;
        d = vf_sub(vf_load_any(tpi_element(args->x, dtype, row * args->x_stride + at), dtype, n), means);
        g = vf_load_any(tpi_element(args->dy, dtype, row * args->dy_stride + at), dtype, n);
        if (args->gain) /* NULL is allowed where dx isn't wanted, whose sums these are */
            g = vf_mul(g, vf_load_any(tpi_element(args->gain, dtype, at), dtype, n));
        if (n < TPI_LANES)
            d = vf_keep_first(d, n, vf_zero());
        sums->d.way[way] = vf_add(sums->d.way[way], d);
        sums->g.way[way] = vf_add(sums->g.way[way], g);
        sums->gd.way[way] = vf_fma(g, d, sums->gd.way[way]);
    }
}

TPI_ROW_INLINE norm_grad_row grad_row_sums(const tpi_norm_grad_args *args, int64_t row, const tp_dtype dtype)
{
    grad_sums sums = {tpi_row_sum_zero(), tpi_row_sum_zero(), tpi_row_sum_zero()};
    float cols = (float)args->cols, rstd = args->stats[2 * row + 1], total_g, total_gd;
    vf means = vf_set1(args->rms ? 0.0f : args->stats[2 * row]);
    norm_grad_row result;
    int64_t c = 0;

    for (; c + TPI_ROW_WAYS * TPI_LANES <= args->cols; c += TPI_ROW_WAYS * TPI_LANES)
        grad_sums_step(args, &sums, row, c, means, dtype, true);
    grad_sums_step(args, &sums, row, c, means, dtype, false);
    total_g = tpi_row_sum_total(&sums.g);
    total_gd = tpi_row_sum_total(&sums.gd);
    result.rest = args->rms ? 0.0f : tpi_row_sum_total(&sums.d) / cols;
    result.mean_g = args->rms ? 0.0f : total_g / cols;
    result.mean_gx = fmaf(-result.rest, total_g, total_gd) * rstd / cols;
    return result;
}

/* (x - mean - rest) * rstd, the same wherever it is needed. */
TPI_ROW_INLINE vf normalized(const tpi_norm_grad_args *args, const norm_grad_row *sums, int64_t row, int64_t col, int n,
                             const tp_dtype dtype)
{
    vf x = vf_load_any(tpi_element(args->x, dtype, row * args->x_stride + col), dtype, n);
    vf d = vf_sub(x, vf_set1(args->rms ? 0.0f : args->stats[2 * row]));

    return vf_mul(vf_sub(d, vf_set1(sums->rest)), vf_set1(args->stats[2 * row + 1]));
}

TPI_ROW_INLINE void grad_vector_dx(const tpi_norm_grad_args *args, const norm_grad_row *sums, int64_t row, int64_t c,
                                   int n, const tp_dtype dtype)
{
    vf g = vf_mul(vf_load_any(tpi_element(args->dy, dtype, row * args->dy_stride + c), dtype, n),
                  vf_load_any(tpi_element(args->gain, dtype, c), dtype, n));
    vf value = vf_sub(g, vf_set1(sums->mean_g));

    value = vf_fnma(normalized(args, sums, row, c, n, dtype), vf_set1(sums->mean_gx), value);
    value = vf_mul(value, vf_set1(args->stats[2 * row + 1]));
    if (args->residual)
        value =
            vf_add(value, vf_load_any(tpi_element(args->residual, dtype, row * args->residual_stride + c), dtype, n));
    vf_store_any(tpi_element_of(args->dx, dtype, row * args->dx_stride + c), dtype, value, n);
}

TPI_ROW_INLINE void grad_row_of(const norm_grad_work *work, int64_t row, const tp_dtype dtype)
{
    const tpi_norm_grad_args *args = work->args;
    const norm_grad_row sums = work->sums ? grad_row_sums(args, row, dtype) : work->row[row];
    int64_t c = 0;

    work->row[row] = sums;
    for (; work->dx && c + TPI_LANES <= args->cols; c += TPI_LANES)
        grad_vector_dx(args, &sums, row, c, TPI_LANES, dtype);
    if (work->dx && c < args->cols)
        grad_vector_dx(args, &sums, row, c, (int)(args->cols - c), dtype);
}

static void grad_rows_part(void *arg, int64_t part, int worker)
{
    const norm_grad_work *work = arg;
    tpi_tile tile = tpi_tile_at(&work->tiles, part);

    (void)worker;
    for (int64_t row = tile.row; row < tile.row_end; row++) {
        switch (work->args->dtype) {
        case TP_DTYPE_BF16: grad_row_of(work, row, TP_DTYPE_BF16); break;
        case TP_DTYPE_F16: grad_row_of(work, row, TP_DTYPE_F16); break;
        default: grad_row_of(work, row, TP_DTYPE_F32);
        }
    }
}

/* Up to four vectors of the gain's and bias's gradients from column `col` on: chains over rows [first, end). full: four
 * whole ones. */
TPI_ROW_INLINE void grad_gain_columns(const norm_grad_work *work, int64_t v, int64_t col, tp_range rows,
                                      const tp_dtype dtype, const bool full)
{
    const tpi_norm_grad_args *args = work->args;
    const int vectors = full ? GRAD_COLS / TPI_LANES : 1;
    int n = full ? TPI_LANES : tpi_lanes_of(args->cols - col);
    int64_t at = (v - args->virtual_first) * args->cols + col;
    vf gain[GRAD_COLS / TPI_LANES], bias[GRAD_COLS / TPI_LANES];

#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++) {
        gain[i] = args->gain_grad ? vf_load_any(args->gain_grad + at + i * TPI_LANES, TP_DTYPE_F32, n) : vf_zero();
        bias[i] = args->bias_grad ? vf_load_any(args->bias_grad + at + i * TPI_LANES, TP_DTYPE_F32, n) : vf_zero();
    }
    for (int64_t row = rows.begin; row < rows.end; row++) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) {
            int64_t c = col + i * TPI_LANES;
            vf dy = vf_load_any(tpi_element(args->dy, dtype, row * args->dy_stride + c), dtype, n);

            gain[i] = vf_fma(dy, normalized(args, &work->row[row], row, c, n, dtype), gain[i]);
            bias[i] = vf_add(bias[i], dy);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++) {
        if (args->gain_grad)
            vf_store_any(args->gain_grad + at + i * TPI_LANES, TP_DTYPE_F32, gain[i], n);
        if (args->bias_grad)
            vf_store_any(args->bias_grad + at + i * TPI_LANES, TP_DTYPE_F32, bias[i], n);
    }
}

TPI_ROW_INLINE void grad_gain_block(const norm_grad_work *work, int64_t v, int64_t col, tp_range rows,
                                    const tp_dtype dtype)
{
    if (col + GRAD_COLS <= work->args->cols) {
        grad_gain_columns(work, v, col, rows, dtype, true);
        return;
    }
    for (; col < work->args->cols; col += TPI_LANES)
        grad_gain_columns(work, v, col, rows, dtype, false);
}

/* One column block of one virtual rank. */
static void grad_gain_part(void *arg, int64_t part, int worker)
{
    const norm_grad_work *work = arg;
    const tpi_norm_grad_args *args = work->args;
    int64_t v = part / work->col_blocks, col = part % work->col_blocks * GRAD_COLS;
    tp_range all = tp_shard_range(args->total_rows, args->virtual_count, v), rows;

    (void)worker;
    rows.begin = all.begin > args->first_row ? all.begin - args->first_row : 0;
    rows.end = all.end - args->first_row < args->rows ? all.end - args->first_row : args->rows;
    if (rows.begin >= rows.end)
        return;
    switch (args->dtype) {
    case TP_DTYPE_BF16: grad_gain_block(work, v, col, rows, TP_DTYPE_BF16); return;
    case TP_DTYPE_F16: grad_gain_block(work, v, col, rows, TP_DTYPE_F16); return;
    default: grad_gain_block(work, v, col, rows, TP_DTYPE_F32);
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
