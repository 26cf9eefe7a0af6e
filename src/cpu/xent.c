/* Cross-entropy over a vocabulary shard, in four phases (ops.h). Everything is relative to the row's maximum over the
 * whole vocabulary, so that large logits keep their digits: loss = log(sum) + (1-e) (max - logit[target]) - e *
 * mean(logit - max) + z * lse^2. A row whose logits are all -inf has no distribution: its loss is +inf and its gradient
 * 0. */
#include "cpu/cpu.h"
#include "cpu/norm_math.h"
#include "cpu/tree.h"
#include "cpu/vector_math.h"

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

static void max_row(const tpi_xent_args *args, int64_t row)
{
    const void *logits = tpi_element(args->logits, args->dtype, row * args->stride);
    vf max = vf_set1(-INFINITY);

    for (int64_t c = 0; c < args->cols; c += TPI_LANES) {
        int n = tpi_lanes_of(args->cols - c);
        vf x = vf_load_any(tpi_element(logits, args->dtype, c), args->dtype, n);

        if (n < TPI_LANES)
            x = vf_keep_first(x, n, max);
        max = vf_max_nan(x, max);
    }
    args->max[row] = vf_max_lane(max);
}

/* ---- phase 2 ---- */

/* Adds one segment's exp(x - max) and, with label smoothing, x - max. */
static void sum_segment(const tpi_xent_args *args, const void *logits, int64_t cols, vf shift, tpi_row_sum *exps,
                        tpi_row_sum *raw)
{
    bool smoothing = args->label_smoothing > 0;

    for (int64_t c = 0; c < cols; c += TPI_ROW_WAYS * TPI_LANES) {
        for (int way = 0; way < TPI_ROW_WAYS; way++) {
            int64_t at = c + way * TPI_LANES;
            int n = tpi_lanes_of(cols - at);
            vf x, e;

            if (n <= 0)
                continue;
            x = vf_sub(vf_load_any(tpi_element(logits, args->dtype, at), args->dtype, n), shift);
            e = vf_exp(x);
            if (n < TPI_LANES) {
                e = vf_keep_first(e, n, vf_zero());
                x = vf_keep_first(x, n, vf_zero());
            }
            exps->way[way] = vf_add(exps->way[way], e);
            if (smoothing)
                raw->way[way] = vf_add(raw->way[way], x);
        }
    }
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
        tpi_row_sum exp_sum = tpi_row_sum_zero(), raw_sum = tpi_row_sum_zero();

        for (; segment < order->segments && order->segment[segment].block == block; segment++) {
            int64_t at = row * args->stride + order->segment[segment].begin;

            sum_segment(args, tpi_element(args->logits, args->dtype, at), order->segment[segment].length, shift,
                        &exp_sum, &raw_sum);
        }
        exps[block] = tpi_row_sum_total(&exp_sum);
        raw[block] = tpi_row_sum_total(&raw_sum);
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
    vf value = vf_fma(vf_exp(vf_sub(x, slope->shift)), slope->factor, vf_add(slope->base, vf_set1(extra)));

    return vf_mul(value, slope->scale);
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
    for (int64_t c = 0; c < args->cols; c += TPI_LANES) {
        int n = tpi_lanes_of(args->cols - c);
        void *x = tpi_element_of(logits, args->dtype, c);

        vf_store_any(x, args->dtype, nothing ? vf_zero() : slope_at(&slope, vf_load_any(x, args->dtype, n), 0.0f), n);
    }
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
