/* Cross-entropy over a vocabulary shard, in four phases (ops.h). Everything is relative to the row's maximum over the
 * whole vocabulary, so that large logits keep their digits: loss = log(sum) + (1-e) (max - logit[target]) - e *
 * mean(logit - max) + z * lse^2. A row whose logits are all -inf has no distribution: its loss is +inf and its gradient
 * 0. */
#include "cpu/cpu.h"
#include "cpu/norm_math.h"
#include "cpu/tree.h"
#include "cpu/vector_math.h"

#include <string.h>

typedef struct xent_work {
    const tpi_xent_args *args;
    const tpi_inner *order;
    int64_t part_rows;
} xent_work;

/* What logits are taken relative to. */
static float shift_of(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

static vf shifts_of(vf max)
{
    return vf_select(vf_eq(max, vf_set1(-INFINITY)), vf_zero(), max);
}

/* ---- phase 1 ---- */

/* Four vectors of a row from `c` on; full: the row has them all, else up to its end. `dtype` and `full` are constants
 * in each copy. */
TPI_ROW_INLINE void max_step(vf max[TPI_ROW_WAYS], const void *logits, const tp_dtype dtype, int64_t c, int64_t cols,
                             const bool full)
{
#pragma GCC unroll 4
    for (int way = 0; way < TPI_ROW_WAYS; way++) {
        int64_t at = c + way * TPI_LANES;
        int n = full ? TPI_LANES : tpi_lanes_of(cols - at);
        vf x;

        if (n <= 0)
            continue;
        x = vf_load_any(tpi_element(logits, dtype, at), dtype, n);
        if (n < TPI_LANES)
            x = vf_keep_first(x, n, max[way]);
        max[way] = vf_max_nan(x, max[way]);
    }
}

TPI_ROW_INLINE float max_of(const void *logits, const tp_dtype dtype, int64_t cols)
{
    const vf least = vf_set1(-INFINITY);
    vf max[TPI_ROW_WAYS] = {least, least, least, least};
    int64_t c = 0;

    for (; c + TPI_ROW_WAYS * TPI_LANES <= cols; c += TPI_ROW_WAYS * TPI_LANES)
        max_step(max, logits, dtype, c, cols, true);
    max_step(max, logits, dtype, c, cols, false);
    return vf_max_lane(vf_max_nan(vf_max_nan(max[0], max[1]), vf_max_nan(max[2], max[3])));
}

static void max_row(const tpi_xent_args *args, int64_t row)
{
    const void *logits = tpi_element(args->logits, args->dtype, row * args->stride);

    switch (args->dtype) {
    case TP_DTYPE_BF16: args->max[row] = max_of(logits, TP_DTYPE_BF16, args->cols); return;
    case TP_DTYPE_F16: args->max[row] = max_of(logits, TP_DTYPE_F16, args->cols); return;
    default: args->max[row] = max_of(logits, TP_DTYPE_F32, args->cols);
    }
}

/* ---- phase 2 ---- */

typedef struct xent_sums {
    tpi_row_sum exps, raw;
} xent_sums;

TPI_ROW_INLINE void sum_step(xent_sums *sums, const void *logits, const tp_dtype dtype, int64_t c, int64_t cols,
                             vf shift, const bool smoothing, const bool full)
{
#pragma GCC unroll 4
    for (int way = 0; way < TPI_ROW_WAYS; way++) {
        int64_t at = c + way * TPI_LANES;
        int n = full ? TPI_LANES : tpi_lanes_of(cols - at);
        vf x, e;

        if (n <= 0)
            continue;
        x = vf_sub(vf_load_any(tpi_element(logits, dtype, at), dtype, n), shift);
        e = tpi_exp_falling(x);
        if (n < TPI_LANES) {
            e = vf_keep_first(e, n, vf_zero());
            x = vf_keep_first(x, n, vf_zero());
        }
        sums->exps.way[way] = vf_add(sums->exps.way[way], e);
        if (smoothing)
            sums->raw.way[way] = vf_add(sums->raw.way[way], x);
    }
}

TPI_ROW_INLINE void sum_segment_of(xent_sums *given, const void *logits, const tp_dtype dtype, int64_t cols, vf shift,
                                   const bool smoothing)
{
    xent_sums sums = *given;
    int64_t c = 0;

    for (; c + TPI_ROW_WAYS * TPI_LANES <= cols; c += TPI_ROW_WAYS * TPI_LANES)
        sum_step(&sums, logits, dtype, c, cols, shift, smoothing, true);
    sum_step(&sums, logits, dtype, c, cols, shift, smoothing, false);
    *given = sums;
}

TPI_ROW_INLINE void sum_segment_any(xent_sums *sums, const void *logits, tp_dtype dtype, int64_t cols, vf shift,
                                    const bool smoothing)
{
    switch (dtype) {
    case TP_DTYPE_BF16: sum_segment_of(sums, logits, TP_DTYPE_BF16, cols, shift, smoothing); return;
    case TP_DTYPE_F16: sum_segment_of(sums, logits, TP_DTYPE_F16, cols, shift, smoothing); return;
    default: sum_segment_of(sums, logits, TP_DTYPE_F32, cols, shift, smoothing);
    }
}

/* Adds one segment's exp(x - max) and, with label smoothing, x - max. */
static void sum_segment(const tpi_xent_args *args, const void *logits, int64_t cols, vf shift, xent_sums *sums)
{
    if (args->label_smoothing > 0)
        sum_segment_any(sums, logits, args->dtype, cols, shift, true);
    else
        sum_segment_any(sums, logits, args->dtype, cols, shift, false);
}

static float target_logit(const tpi_xent_args *args, int64_t row)
{
    int64_t col = args->targets[row] - args->first_id;

    if (args->targets[row] < 0 || col < 0 || col >= args->cols)
        return 0.0f;
    return vf_sum(vf_load_any(tpi_element(args->logits, args->dtype, row * args->stride + col), args->dtype, 1));
}

static void sums_row(const tpi_xent_args *args, const tpi_inner *order, int64_t row)
{
    float exps[TPI_MAX_BLOCKS], raw[TPI_MAX_BLOCKS];
    vf shift = vf_set1(shift_of(args->max[row]));
    int segment = 0;

    for (int block = 0; block < order->blocks; block++) {
        xent_sums sums = {tpi_row_sum_zero(), tpi_row_sum_zero()};

        for (; segment < order->segments && order->segment[segment].block == block; segment++) {
            int64_t at = row * args->stride + order->segment[segment].begin;

            sum_segment(args, tpi_element(args->logits, args->dtype, at), order->segment[segment].length, shift, &sums);
        }
        exps[block] = tpi_row_sum_total(&sums.exps);
        raw[block] = tpi_row_sum_total(&sums.raw);
    }
    args->sums[row] = tpi_tree_sum(exps, order->blocks);
    args->sums[args->rows + row] = target_logit(args, row);
    args->sums[2 * args->rows + row] = tpi_tree_sum(raw, order->blocks);
}

/* ---- phase 3 ---- */

/* Loss and log-sum-exp of n rows. */
static void loss_rows(const tpi_xent_args *args, int64_t row, int n)
{
    float smoothing = args->label_smoothing;
    vf shift = shifts_of(vf_load_n(args->max + row, n)), sum = vf_load_n(args->sums + row, n);
    vf log_sum = vf_log(sum), lse = vf_add(shift, log_sum), loss;
    vi targets = vi_load_n(args->targets + row, n);

    loss = vf_fma(vf_sub(shift, vf_load_n(args->sums + args->rows + row, n)), vf_set1(1.0f - smoothing), log_sum);
    if (smoothing > 0)
        loss = vf_fnma(vf_load_n(args->sums + 2 * args->rows + row, n), vf_set1(smoothing / (float)args->vocabulary),
                       loss);
    if (args->z_loss != 0)
        loss = vf_fma(vf_mul(lse, lse), vf_set1(args->z_loss), loss);
    loss = vf_select(vf_eq(sum, vf_zero()), vf_set1(INFINITY), loss);
    loss = vf_select(vi_lt(targets, vi_set1(0)), vf_zero(), loss);
    vf_store_n(args->loss + row, loss, n);
    vf_store_n(args->lse + row, lse, n);
}

static void loss_all(const tpi_xent_args *args)
{
    float total = args->total ? args->total[0] : 0.0f, count = args->total ? args->total[1] : 0.0f;

    for (int64_t row = 0; row < args->rows; row += TPI_LANES) {
        int n = tpi_lanes_of(args->rows - row);

        loss_rows(args, row, n);
        for (int i = 0; i < n; i++) {
            if (args->targets[row + i] < 0)
                continue;
            total += args->loss[row + i];
            count += 1.0f;
        }
    }
    if (args->total) {
        args->total[0] = total;
        args->total[1] = count;
    }
}

/* ---- phase 4 ---- */

typedef struct xent_slope {
    vf shift, factor, base, scale; /* scale * (exp(x - shift) * factor + base) */
} xent_slope;

static inline vf slope_at(const xent_slope *slope, vf x, float extra)
{
    vf value = vf_fma(tpi_exp_falling(vf_sub(x, slope->shift)), slope->factor, vf_add(slope->base, vf_set1(extra)));

    return vf_mul(value, slope->scale);
}

TPI_ROW_INLINE void slopes_step(const xent_slope *slope, void *logits, const tp_dtype dtype, int64_t c, int64_t cols,
                                const bool full)
{
#pragma GCC unroll 4
    for (int way = 0; way < TPI_ROW_WAYS; way++) {
        int64_t at = c + way * TPI_LANES;
        int n = full ? TPI_LANES : tpi_lanes_of(cols - at);
        void *x = tpi_element_of(logits, dtype, at);

        if (n > 0)
            vf_store_any(x, dtype, slope_at(slope, vf_load_any(x, dtype, n), 0.0f), n);
    }
}

/* Logits to slopes, in place. */
TPI_ROW_INLINE void slopes_of(const xent_slope *given, void *logits, const tp_dtype dtype, int64_t cols)
{
    const xent_slope slope = *given;
    int64_t c = 0;

    for (; c + TPI_ROW_WAYS * TPI_LANES <= cols; c += TPI_ROW_WAYS * TPI_LANES)
        slopes_step(&slope, logits, dtype, c, cols, true);
    slopes_step(&slope, logits, dtype, c, cols, false);
}

static void slopes(const xent_slope *slope, void *logits, tp_dtype dtype, int64_t cols)
{
    switch (dtype) {
    case TP_DTYPE_BF16: slopes_of(slope, logits, TP_DTYPE_BF16, cols); return;
    case TP_DTYPE_F16: slopes_of(slope, logits, TP_DTYPE_F16, cols); return;
    default: slopes_of(slope, logits, TP_DTYPE_F32, cols);
    }
}

static void grad_row(const tpi_xent_args *args, int64_t row)
{
    void *logits = tpi_element_of(args->logits, args->dtype, row * args->stride);
    int64_t target = args->targets[row] - args->first_id;
    bool nothing = args->targets[row] < 0 || args->sums[row] == 0;
    float smoothing = args->label_smoothing;
    xent_slope slope = {
        .shift = vf_set1(shift_of(args->max[row])),
        .factor = vf_set1((1.0f + 2.0f * args->z_loss * args->lse[row]) / args->sums[row]),
        .base = vf_set1(-smoothing / (float)args->vocabulary),
        .scale = vf_set1(args->loss_scale),
    };
    vf at_target = vf_zero();

    if (!nothing && target >= 0 && target < args->cols)
        at_target =
            slope_at(&slope, vf_load_any(tpi_element(logits, args->dtype, target), args->dtype, 1), smoothing - 1.0f);
    if (nothing)
        memset(logits, 0, (size_t)args->cols * tp_dtype_size(args->dtype));
    else
        slopes(&slope, logits, args->dtype, args->cols);
    if (!nothing && target >= 0 && target < args->cols)
        vf_store_any(tpi_element_of(logits, args->dtype, target), args->dtype, at_target, 1);
}

/* ---- the op ---- */

static void xent_part(void *arg, int64_t part, int worker)
{
    const xent_work *work = arg;
    const tpi_xent_args *args = work->args;
    int64_t begin = part * work->part_rows,
            end = begin + work->part_rows < args->rows ? begin + work->part_rows : args->rows;

    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        if (args->phase == TPI_XENT_MAX)
            max_row(args, row);
        else if (args->phase == TPI_XENT_SUMS)
            sums_row(args, work->order, row);
        else
            grad_row(args, row);
    }
}

tp_status CPU(xent)(tp_ctx *ctx, const void *args)
{
    const tpi_xent_args *xent = args;
    tpi_inner whole = {.blocks = 1, .segments = 1, .segment = {{0, 0, xent->cols}}};
    xent_work work = {xent, xent->order ? xent->order : &whole, 1};

    for (int64_t row = 0; xent->targets && row < xent->rows; row++) {
        if (xent->targets[row] >= xent->vocabulary)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "target %d of row %lld is outside the vocabulary of %lld",
                              xent->targets[row], (long long)row, (long long)xent->vocabulary);
    }
    if (xent->phase == TPI_XENT_LOSS) {
        loss_all(xent);
        return TP_OK;
    }
    if (xent->cols < 8192)
        work.part_rows = 8192 / (xent->cols + 1) + 1;
    tpi_cpu_parallel(ctx, (xent->rows + work.part_rows - 1) / work.part_rows, xent_part, &work);
    return TP_OK;
}
