/* Token embedding, cut by vocabulary rows. */
#include <tp/embedding.h>

#include <inttypes.h>

#include "comm/table.h"
#include "layers/layer.h"
#include "layers/pass_check.h"

struct tp_embedding {
    tp_ctx *ctx;
    tp_embedding_desc desc;
    tp_range rows; /* of the table, here */
    tp_param *table, *position; /* position NULL: none */
};

static tp_status check_desc(tp_ctx *ctx, const tp_embedding_desc *desc, int ranks)
{
    if (desc->vocabulary < ranks || desc->vocabulary < 1 || desc->vocabulary > INT32_MAX)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "embedding: vocabulary is %" PRId64 ", must be in [ranks %d, %d]",
                          desc->vocabulary, ranks, INT32_MAX);
    if (desc->features < 1)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "embedding: features is %" PRId64 ", must be at least 1",
                          desc->features);
    if (desc->positions < 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "embedding: positions is %" PRId64 ", must be at least 0",
                          desc->positions);
    TPI_TRY(tpi_layer_check_dtype(ctx, "embedding", desc->dtype));
    TPI_TRY(tpi_layer_check_std(ctx, "embedding", "init_std", desc->init_std));
    TPI_TRY(tpi_layer_check_std(ctx, "embedding", "position_init_std", desc->position_init_std));
    return tpi_layer_check_dropout(ctx, "embedding", "dropout", desc->dropout);
}

static tp_status create_params(tp_ctx *ctx, tp_embedding *layer)
{
    const tp_embedding_desc *desc = &layer->desc;
    float std = desc->init_std != 0.0f ? desc->init_std : 0.02f;
    tpi_param_desc table = {.layer = desc->name,
                            .suffix = "weight",
                            .dims = 2,
                            .shape = {desc->vocabulary, desc->features},
                            .shard_dim = 0,
                            .parts = 1,
                            .part = {{desc->vocabulary, 1, 0}},
                            .dtype = desc->dtype,
                            .flags = TP_PARAM_DECAY | (desc->tied ? TP_PARAM_TIED : 0u),
                            .init = TP_INIT_NORMAL,
                            .init_std = std,
                            .packed = desc->tied};
    TPI_TRY(tpi_param_create(ctx, &table, &layer->table));
    if (desc->positions == 0)
        return TP_OK;
    tpi_param_desc position = {.layer = desc->name,
                               .suffix = "position",
                               .dims = 2,
                               .shape = {desc->positions, desc->features},
                               .shard_dim = -1,
                               .dtype = desc->dtype,
                               .flags = TP_PARAM_DECAY,
                               .init = TP_INIT_NORMAL,
                               .init_std = desc->position_init_std != 0.0f ? desc->position_init_std : std};
    return tpi_param_create(ctx, &position, &layer->position);
}

tp_status tp_embedding_create(tp_ctx *ctx, const tp_embedding_desc *desc, tp_embedding **out)
{
    TPI_TRY(tpi_given(ctx, "tp_embedding_create: out", out));
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_given(ctx, "tp_embedding_create: desc", desc));
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    TPI_TRY(check_desc(ctx, desc, tp_comm_size(group)));
    tp_embedding *layer = tpi_host_allocate(ctx, sizeof *layer);
    if (layer == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "embedding: out of memory");
    layer->ctx = ctx;
    layer->desc = *desc;
    layer->rows = tp_shard_range(desc->vocabulary, tp_comm_size(group), tp_comm_rank(group));
    tp_status status = create_params(ctx, layer);
    layer->desc.name = NULL; /* the caller's text need not stay */
    if (status != TP_OK) {
        tp_embedding_destroy(layer);
        return status;
    }
    *out = layer;
    return TP_OK;
}

void tp_embedding_destroy(tp_embedding *layer)
{
    if (layer == NULL)
        return;
    tpi_param_destroy(layer->ctx, layer->table);
    tpi_param_destroy(layer->ctx, layer->position);
    tpi_host_release(layer->ctx, layer, sizeof *layer);
}

int tp_embedding_params(tp_embedding *layer, tp_param **out, int capacity)
{
    if (layer == NULL)
        return 0;
    tp_param *all[2] = {layer->table, layer->position};
    int count = layer->position != NULL ? 2 : 1;
    for (int i = 0; out != NULL && i < count && i < capacity; i++)
        out[i] = all[i];
    return count;
}

static tp_status check_pass(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass)
{
    TPI_TRY(tpi_pass_check(ctx, pass));
    TPI_TRY(tpi_pass_check_ids(
        ctx, &(tpi_pass_ids){"ids", "vocabulary", pass->ids, pass->tokens, 0, layer->desc.vocabulary}));
    if (layer->position == NULL)
        return TP_OK;
    if (pass->positions != NULL)
        return tpi_pass_check_ids(
            ctx, &(tpi_pass_ids){"positions", "positions", pass->positions, pass->tokens, 0, layer->desc.positions});
    int64_t longest = tpi_pass_longest(pass);
    if (longest > layer->desc.positions)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "pass: a sequence of %" PRId64 " tokens is longer than positions %" PRId64, longest,
                          layer->desc.positions);
    return TP_OK;
}

static tpi_embedding_args gather_args(const tp_embedding *layer, const tp_pass *pass, tp_tensor out)
{
    return (tpi_embedding_args){.rows = out.shape[0],
                                .cols = layer->desc.features,
                                .offsets = pass->offsets,
                                .sequences = pass->sequences > 0 ? pass->sequences : 1,
                                .table_dtype = layer->desc.dtype,
                                .out = out.data,
                                .out_dtype = out.dtype};
}

/* Rows of the position table for this rank's tokens. */
static tp_status gather_positions(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_dtype dtype,
                                  tp_tensor *out)
{
    *out = tp_tensor_none();
    if (layer->position == NULL)
        return TP_OK;
    tp_range mine = tp_pass_rows(ctx, pass, layer->desc.sequence_parallel);
    /* Without given positions the op counts from sequence starts, so it makes all rows. */
    tp_range made = pass->positions != NULL ? mine : (tp_range){0, pass->tokens};
    tp_tensor rows;
    TPI_TRY(tpi_scratch_tensor(ctx, dtype, made.end - made.begin, layer->desc.features, &rows));
    tpi_embedding_args args = gather_args(layer, pass, rows);
    args.ids = pass->positions != NULL ? pass->positions + mine.begin : NULL;
    args.table = layer->position->value.data;
    args.table_rows = args.vocabulary = layer->desc.positions;
    args.positions = true;
    args.first_row = made.begin;
    if (made.end - made.begin < pass->tokens) { /* all ranks look at all positions, and tell the same */
        tpi_embedding_args all = args;
        all.rows = pass->tokens;
        all.cols = all.first_row = 0;
        all.ids = pass->positions;
        TPI_TRY(tpi_embedding(ctx->compute, &all));
    }
    TPI_TRY(tpi_embedding(ctx->compute, &args));
    *out = tp_tensor_rows(rows, mine.begin - made.begin, mine.end - made.begin);
    return TP_OK;
}

/* This rank's table rows for all tokens: f32, zero where another rank has the id. */
static tp_status gather_table(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor *out)
{
    TPI_TRY(tpi_scratch_tensor(ctx, TP_DTYPE_F32, pass->tokens, layer->desc.features, out));
    tpi_embedding_args args = gather_args(layer, pass, *out);
    args.ids = pass->ids;
    args.table = layer->table->value.data;
    args.first_id = layer->rows.begin;
    args.table_rows = layer->rows.end - layer->rows.begin;
    args.vocabulary = layer->desc.vocabulary;
    return tpi_embedding(ctx->compute, &args);
}

/* out = dropout(in): in f32, rounded once to out's dtype. The same op forward and backward. */
static tp_status drop(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor in, tp_tensor out,
                      int64_t first)
{
    return tpi_map(ctx->compute,
                   &(tpi_map_args){.rows = in.shape[0],
                                   .cols = in.shape[1],
                                   .in = in.data,
                                   .in_dtype = in.dtype,
                                   .in_stride = in.stride[0],
                                   .out = out.data,
                                   .out_dtype = out.dtype,
                                   .out_stride = out.stride[0],
                                   .dropout = tpi_pass_dropout(pass, layer->desc.dropout),
                                   .dropout_key = tpi_dropout_key(ctx, layer->desc.site, pass),
                                   .first_row = pass->first_token + first});
}

/* y = dropout(sum over ranks + positions). A reduction would add positions after dropout, so with dropout it writes f32
 * (the same f32 value that it would round otherwise) and the mask and the one rounding come after it. */
static tp_status combine(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor y)
{
    bool dropping = tpi_pass_dropout(pass, layer->desc.dropout) > 0.0f;
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    tp_tensor partial, sum = y;
    tp_reduce_desc finish = {0};
    TPI_TRY(gather_table(ctx, layer, pass, &partial));
    TPI_TRY(gather_positions(ctx, layer, pass, dropping ? TP_DTYPE_F32 : layer->desc.dtype, &finish.residual));
    if (dropping)
        TPI_TRY(tpi_scratch_tensor(ctx, TP_DTYPE_F32, y.shape[0], y.shape[1], &sum));
    if (layer->desc.sequence_parallel)
        TPI_TRY(tp_reduce_scatter(ctx, group, partial, sum, NULL, &finish));
    else
        TPI_TRY(tp_all_reduce(ctx, group, partial, sum, &finish));
    return dropping ? drop(ctx, layer, pass, sum, y, tp_pass_rows(ctx, pass, layer->desc.sequence_parallel).begin)
                    : TP_OK;
}

static tp_status check_call(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, const char *what,
                            tp_tensor tensor)
{
    TPI_TRY_OBJECT(ctx, "embedding", layer);
    TPI_TRY(check_pass(ctx, layer, pass));
    tp_range mine = tp_pass_rows(ctx, pass, layer->desc.sequence_parallel);
    tp_tensor expected = tp_tensor_2d(NULL, layer->desc.dtype, mine.end - mine.begin, layer->desc.features);
    TPI_TRY(tpi_layer_check_matrix(ctx, "embedding", what, tensor, &expected));
    if (!tp_tensor_is_dense(tensor))
        return tpi_refuse(ctx, TP_ERR_SHAPE, "embedding: %s is not dense: rows of %" PRId64 " are %" PRId64 " apart",
                          what, tensor.shape[1], tensor.stride[0]);
    return TP_OK;
}

tp_status tp_embedding_forward(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor y)
{
    TPI_TRY(check_call(ctx, layer, pass, "y", y));
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = combine(ctx, layer, pass, y);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

/* Gradient of all tokens before dropout: gathered under sequence parallelism. */
static tp_status whole_gradient(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor dy,
                                tp_tensor *out)
{
    tp_tensor all = dy;
    if (layer->desc.sequence_parallel) {
        TPI_TRY(tpi_scratch_tensor(ctx, dy.dtype, pass->tokens, layer->desc.features, &all));
        TPI_TRY(tp_all_gather(ctx, tp_ctx_group(ctx, TP_AXIS_TP), dy, all, NULL));
    }
    *out = all;
    if (!(tpi_pass_dropout(pass, layer->desc.dropout) > 0.0f))
        return TP_OK;
    TPI_TRY(tpi_scratch_tensor(ctx, TP_DTYPE_F32, pass->tokens, layer->desc.features, out));
    return drop(ctx, layer, pass, all, *out, 0);
}

static tp_status scatter(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor dy)
{
    tp_tensor all;
    TPI_TRY(whole_gradient(ctx, layer, pass, dy, &all));
    tp_tensor target = layer->desc.tied ? layer->table->grad_tied : layer->table->grad;
    tpi_embedding_grad_args args = {.rows = pass->tokens,
                                    .cols = layer->desc.features,
                                    .ids = pass->ids,
                                    .offsets = pass->offsets,
                                    .sequences = pass->sequences > 0 ? pass->sequences : 1,
                                    .dy = all.data,
                                    .dy_dtype = all.dtype,
                                    .first_id = layer->rows.begin,
                                    .table_rows = layer->rows.end - layer->rows.begin,
                                    .vocabulary = layer->desc.vocabulary,
                                    .grad = target.data};
    if (layer->desc.tied)
        tpi_param_touch_rows(layer->table, args.ids, args.rows, args.first_id);
    TPI_TRY(tpi_embedding_grad(ctx->compute, &args));
    if (layer->position == NULL)
        return TP_OK;
    args.ids = pass->positions;
    args.first_id = 0;
    args.table_rows = args.vocabulary = layer->desc.positions;
    args.positions = true;
    args.grad = layer->position->grad.data;
    return tpi_embedding_grad(ctx->compute, &args);
}

tp_status tp_embedding_backward(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor dy)
{
    TPI_TRY(check_call(ctx, layer, pass, "dy", dy));
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = scatter(ctx, layer, pass, dy);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}
