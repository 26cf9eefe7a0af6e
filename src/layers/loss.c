/* Cross-entropy over a cut vocabulary: local maximum, local sums, and the loss, with an all-reduce between each two. */
#include "layers/loss.h"

#include <inttypes.h>
#include <math.h>

#include "comm/table.h"
#include "layers/layer.h"
#include "layers/pass_check.h"

static tp_comm *group_of(const tp_ctx *ctx)
{
    return tp_ctx_group(ctx, TP_AXIS_TP);
}

static tp_range columns_of(const tp_ctx *ctx, int64_t vocabulary)
{
    return tp_shard_range(vocabulary, tp_comm_size(group_of(ctx)), tp_comm_rank(group_of(ctx)));
}

tp_status tpi_cross_entropy_check(tp_ctx *ctx, const tp_cross_entropy_desc *desc)
{
    TPI_TRY(tpi_given(ctx, "cross-entropy: desc", desc));
    int ranks = tp_comm_size(group_of(ctx));
    if (desc->vocabulary < ranks || desc->vocabulary > INT32_MAX)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "cross-entropy: vocabulary is %" PRId64 ", must be in [ranks %d, %d]",
                          desc->vocabulary, ranks, INT32_MAX);
    TPI_TRY(tpi_layer_check_real(ctx, "cross-entropy: label_smoothing", desc->label_smoothing, 0.0, 1.0));
    return tpi_layer_check_real(ctx, "cross-entropy: z_loss", desc->z_loss, 0.0, INFINITY);
}

void tpi_cross_entropy_order(const tp_ctx *ctx, int64_t vocabulary, tpi_inner *out)
{
    const tp_shard_part part = {vocabulary, 1, 0};
    tpi_inner_from_parts(&part, 1, tp_comm_size(group_of(ctx)), tp_comm_rank(group_of(ctx)), out);
}

tp_status tpi_cross_entropy_check_targets(tp_ctx *ctx, const tp_pass *pass, int64_t vocabulary)
{
    return tpi_pass_check_ids(
        ctx, &(tpi_pass_ids){"targets", "vocabulary", pass->targets, pass->tokens, INT32_MIN, vocabulary});
}

static tp_status check_logits(tp_ctx *ctx, const tp_cross_entropy_desc *desc, const tp_pass *pass, tp_tensor logits)
{
    tp_range mine = columns_of(ctx, desc->vocabulary);
    if (logits.dims == 2 && logits.shape[1] != mine.end - mine.begin)
        return tpi_refuse(ctx, TP_ERR_SHAPE,
                          "cross-entropy: logits have %" PRId64 " columns, this rank's share of vocabulary %" PRId64
                          " is %" PRId64,
                          logits.shape[1], desc->vocabulary, mine.end - mine.begin);
    TPI_TRY(tpi_layer_check_dtype(ctx, "cross-entropy", logits.dtype));
    tp_tensor expected = tp_tensor_2d(NULL, logits.dtype, pass->tokens, mine.end - mine.begin);
    return tpi_layer_check_matrix(ctx, "cross-entropy", "logits", logits, &expected);
}

static tp_status check_call(tp_ctx *ctx, const tpi_cross_entropy_args *args)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_cross_entropy_check(ctx, args->desc));
    TPI_TRY(tpi_pass_check(ctx, args->pass));
    TPI_TRY(check_logits(ctx, args->desc, args->pass, args->logits));
    if (args->total == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "cross-entropy: total is NULL");
    if ((uintptr_t)args->total % sizeof(float) != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "cross-entropy: total at %p is not aligned to %zu bytes",
                          (void *)args->total, sizeof(float));
    if (args->saved != NULL)
        TPI_TRY(tpi_layer_check_memory(ctx, "cross-entropy", args->saved->memory, args->saved->bytes,
                                       tp_cross_entropy_saved_bytes(args->pass)));
    return tpi_cross_entropy_check_targets(ctx, args->pass, args->desc->vocabulary);
}

static float loss_scale_of(const tp_pass *pass)
{
    return pass->loss_scale != 0.0f ? pass->loss_scale : 1.0f;
}

static tpi_xent_args op_args(const tp_ctx *ctx, const tp_cross_entropy_desc *desc, const tp_pass *pass,
                             tp_tensor logits)
{
    return (tpi_xent_args){.rows = pass->tokens,
                           .cols = logits.shape[1],
                           .first_id = columns_of(ctx, desc->vocabulary).begin,
                           .vocabulary = desc->vocabulary,
                           .logits = logits.data,
                           .dtype = logits.dtype,
                           .stride = logits.stride[0],
                           .targets = pass->targets,
                           .label_smoothing = desc->label_smoothing,
                           .z_loss = desc->z_loss,
                           .loss_scale = loss_scale_of(pass)};
}

/* What backward reads, [T] floats each: maximum, the three sums, log-sum-exp. */
enum { SAVED_FLOATS = 5 };

static void lay_out(float *memory, int64_t rows, tpi_xent_args *op)
{
    op->max = memory;
    op->sums = memory + rows;
    op->lse = memory + 4 * rows;
}

static tp_status run_phases(tp_ctx *ctx, const tpi_cross_entropy_args *args)
{
    int64_t rows = args->pass->tokens;
    tpi_xent_args op = op_args(ctx, args->desc, args->pass, args->logits);
    op.order = args->order;
    op.total = args->total;
    void *memory, *loss;
    TPI_TRY(tpi_scratch(ctx, (size_t)rows * sizeof(float), &loss));
    if (args->saved != NULL)
        memory = args->saved->memory;
    else
        TPI_TRY(tpi_scratch(ctx, tp_cross_entropy_saved_bytes(args->pass), &memory));
    op.loss = loss;
    lay_out(memory, rows, &op);

    op.phase = TPI_XENT_MAX;
    TPI_TRY(tpi_xent(ctx->compute, &op));
    tp_tensor max = tp_tensor_1d(op.max, TP_DTYPE_F32, rows);
    TPI_TRY(tp_all_reduce(ctx, group_of(ctx), max, max, &(tp_reduce_desc){.op = TP_REDUCE_MAX}));
    op.phase = TPI_XENT_SUMS;
    TPI_TRY(tpi_xent(ctx->compute, &op));
    tp_tensor sums = tp_tensor_1d(op.sums, TP_DTYPE_F32, 3 * rows);
    TPI_TRY(tp_all_reduce(ctx, group_of(ctx), sums, sums, NULL));
    op.phase = TPI_XENT_LOSS;
    return tpi_xent(ctx->compute, &op);
}

tp_status tpi_cross_entropy_forward(tp_ctx *ctx, const tpi_cross_entropy_args *args)
{
    TPI_TRY(check_call(ctx, args));
    if (args->saved != NULL) {
        args->saved->logits = args->logits;
        args->saved->lse =
            tp_tensor_1d((float *)args->saved->memory + 4 * args->pass->tokens, TP_DTYPE_F32, args->pass->tokens);
    }
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = run_phases(ctx, args);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_cross_entropy_forward(tp_ctx *ctx, const tp_cross_entropy_desc *desc, const tp_pass *pass,
                                   tp_tensor logits, float *total, tp_cross_entropy_saved *saved)
{
    tpi_inner order = {0};
    TPI_TRY(tpi_ctx_usable(ctx));
    if (desc != NULL && desc->vocabulary > 0)
        tpi_cross_entropy_order(ctx, desc->vocabulary, &order);
    TPI_TRY(tpi_cross_entropy_forward(ctx, &(tpi_cross_entropy_args){desc, &order, pass, logits, total, saved}));
    return ctx->backend->behind ? TP_OK : tp_ctx_synchronize(ctx); /* the ops read `order`, some only when they run */
}

tp_status tp_cross_entropy_backward(tp_ctx *ctx, const tp_cross_entropy_desc *desc, const tp_pass *pass,
                                    const tp_cross_entropy_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_cross_entropy_check(ctx, desc));
    TPI_TRY(tpi_pass_check(ctx, pass));
    TPI_TRY(tpi_given(ctx, "cross-entropy: saved", saved));
    TPI_TRY(
        tpi_layer_check_memory(ctx, "cross-entropy", saved->memory, saved->bytes, tp_cross_entropy_saved_bytes(pass)));
    TPI_TRY(check_logits(ctx, desc, pass, saved->logits));
    TPI_TRY(tpi_cross_entropy_check_targets(ctx, pass, desc->vocabulary));
    tpi_xent_args op = op_args(ctx, desc, pass, saved->logits);
    op.phase = TPI_XENT_GRAD;
    lay_out(saved->memory, pass->tokens, &op);
    return tpi_xent(ctx->compute, &op);
}

size_t tp_cross_entropy_saved_bytes(const tp_pass *pass)
{
    if (pass == NULL)
        return 0;
    return tpi_bytes_aligned(tp_tensor_bytes(tp_tensor_2d(NULL, TP_DTYPE_F32, pass->tokens, SAVED_FLOATS)));
}
