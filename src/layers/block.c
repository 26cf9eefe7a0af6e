#include <stdio.h>

#include <tp/block.h>

#include "layers/layer.h"

struct tp_block {
    tp_ctx *ctx;
    tp_block_desc desc;
    char name[TP_PARAM_NAME];
    tp_norm *norm1, *norm2;
    tp_attention *attention;
    tp_mlp *mlp;
};

/* What a part has of the block's fields; 0: not set. */
typedef struct shared {
    bool sequence_parallel;
    tp_overlap overlap;
    int chunks;
    uint32_t layer;
} shared;

static tp_status agree_on(tp_ctx *ctx, const char *name, const char *part, shared set, const tp_block_desc *desc)
{
    const struct {
        const char *field;
        int64_t set, block;
    } pairs[] = {{"sequence_parallel", set.sequence_parallel, desc->sequence_parallel},
                 {"overlap", set.overlap, desc->overlap},
                 {"chunks", set.chunks, desc->chunks},
                 {"layer", set.layer, desc->layer}};
    for (int i = 0; i < 4; i++)
        if (pairs[i].set != 0 && pairs[i].set != pairs[i].block)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s.%s %lld, %s %lld", name, part, pairs[i].field,
                              (long long)pairs[i].set, pairs[i].field, (long long)pairs[i].block);
    return TP_OK;
}

static tp_status agree(tp_ctx *ctx, const tp_block_desc *desc)
{
    const char *name = desc->name ? desc->name : "block";
    const tp_attention_desc *attention = &desc->attention;
    const tp_mlp_desc *mlp = &desc->mlp;
    if ((int)desc->place < 0 || desc->place > TP_NORM_POST)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: place %d is not one of 0 to %d", name, (int)desc->place,
                          TP_NORM_POST);
    if (attention->hidden != 0 && attention->hidden != desc->hidden)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: attention.hidden %lld, hidden %lld", name,
                          (long long)attention->hidden, (long long)desc->hidden);
    if (mlp->hidden != 0 && mlp->hidden != desc->hidden)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: mlp.hidden %lld, hidden %lld", name, (long long)mlp->hidden,
                          (long long)desc->hidden);
    if ((attention->dtype != 0 && attention->dtype != desc->dtype) || (mlp->dtype != 0 && mlp->dtype != desc->dtype))
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: attention is %s and mlp %s, expected %s", name,
                          tp_dtype_name(attention->dtype), tp_dtype_name(mlp->dtype), tp_dtype_name(desc->dtype));
    TPI_TRY(agree_on(ctx, name, "attention",
                     (shared){attention->sequence_parallel, attention->overlap, attention->chunks, attention->layer},
                     desc));
    return agree_on(ctx, name, "mlp", (shared){mlp->sequence_parallel, mlp->overlap, mlp->chunks, mlp->layer}, desc);
}

static tp_status create_norms(tp_ctx *ctx, tp_block *layer)
{
    const tp_block_desc *desc = &layer->desc;
    char name[2 * TP_PARAM_NAME];
    tp_norm_desc norm = {.name = name,
                         .kind = desc->norm,
                         .features = desc->hidden,
                         .dtype = desc->dtype,
                         .epsilon = desc->norm_epsilon,
                         .sequence_parallel = desc->sequence_parallel};
    snprintf(name, sizeof name, "%s.norm1", layer->name);
    TPI_TRY(tp_norm_create(ctx, &norm, &layer->norm1));
    snprintf(name, sizeof name, "%s.norm2", layer->name);
    return tp_norm_create(ctx, &norm, &layer->norm2);
}

static tp_status create_parts(tp_ctx *ctx, tp_block *layer)
{
    const tp_block_desc *desc = &layer->desc;
    char name[2 * TP_PARAM_NAME];
    TPI_TRY(create_norms(ctx, layer));
    tp_attention_desc attention = desc->attention;
    snprintf(name, sizeof name, "%s.attention", layer->name);
    attention.name = name;
    attention.hidden = desc->hidden;
    attention.dtype = desc->dtype;
    attention.sequence_parallel = desc->sequence_parallel;
    attention.overlap = desc->overlap;
    attention.chunks = desc->chunks;
    attention.layer = desc->layer;
    TPI_TRY(tp_attention_create(ctx, &attention, &layer->attention));
    tp_mlp_desc mlp = desc->mlp;
    snprintf(name, sizeof name, "%s.mlp", layer->name);
    mlp.name = name;
    mlp.hidden = desc->hidden;
    mlp.dtype = desc->dtype;
    mlp.sequence_parallel = desc->sequence_parallel;
    mlp.overlap = desc->overlap;
    mlp.chunks = desc->chunks;
    mlp.layer = desc->layer;
    return tp_mlp_create(ctx, &mlp, &layer->mlp);
}

tp_status tp_block_create(tp_ctx *ctx, const tp_block_desc *desc, tp_block **out)
{
    if (out == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_block_create: out is NULL");
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    if (desc == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_block_create: desc is NULL");
    TPI_TRY(agree(ctx, desc));
    tp_block *layer = tpi_host_allocate(ctx, sizeof *layer);
    if (layer == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "tp_block_create: out of memory");
    layer->ctx = ctx;
    layer->desc = *desc;
    snprintf(layer->name, sizeof layer->name, "%s", desc->name ? desc->name : "block");
    layer->desc.name = layer->name;
    tp_status status = create_parts(ctx, layer);
    if (status != TP_OK) {
        tp_block_destroy(layer);
        return status;
    }
    *out = layer;
    return TP_OK;
}

void tp_block_destroy(tp_block *layer)
{
    if (layer == NULL)
        return;
    tp_norm_destroy(layer->norm1);
    tp_norm_destroy(layer->norm2);
    tp_attention_destroy(layer->attention);
    tp_mlp_destroy(layer->mlp);
    tpi_host_release(layer->ctx, layer, sizeof *layer);
}

int tp_block_params(tp_block *layer, tp_param **out, int capacity)
{
    if (layer == NULL)
        return 0;
    tp_param *own[12];
    int count = tp_norm_params(layer->norm1, own, 12);
    count += tp_attention_params(layer->attention, own + count, 12 - count);
    count += tp_norm_params(layer->norm2, own + count, 12 - count);
    count += tp_mlp_params(layer->mlp, own + count, 12 - count);
    for (int i = 0; out != NULL && i < count && i < capacity; i++)
        out[i] = own[i];
    return count;
}

static tp_tensor stream_view(const tp_block *layer, const tp_pass *pass)
{
    tp_range rows = tp_pass_rows(layer->ctx, pass, layer->desc.sequence_parallel);
    return tp_tensor_2d(NULL, layer->desc.dtype, rows.end - rows.begin, layer->desc.hidden);
}

/* Sets every part's memory and the tensors between them; memory NULL only counts. Returns the bytes. */
static size_t carve_saved(const tp_block *layer, const tp_pass *pass, void *memory, tp_block_saved *saved)
{
    tpi_carve carve = {memory, 0};
    tp_tensor *view[3] = {&saved->norm1_out, &saved->middle, &saved->norm2_out};
    for (int i = 0; i < 3; i++) {
        *view[i] = stream_view(layer, pass);
        view[i]->data = tpi_carve_take(&carve, tp_tensor_bytes(*view[i]));
    }
    saved->norm1.bytes = saved->norm2.bytes = tp_norm_saved_bytes(layer->norm1, pass);
    saved->norm1.memory = tpi_carve_take(&carve, saved->norm1.bytes);
    saved->norm2.memory = tpi_carve_take(&carve, saved->norm2.bytes);
    saved->attention.bytes = tp_attention_saved_bytes(layer->attention, pass);
    saved->attention.memory = tpi_carve_take(&carve, saved->attention.bytes);
    saved->mlp.bytes = tp_mlp_saved_bytes(layer->mlp, pass);
    saved->mlp.memory = tpi_carve_take(&carve, saved->mlp.bytes);
    return carve.used;
}

size_t tp_block_saved_bytes(const tp_block *layer, const tp_pass *pass)
{
    if (layer == NULL || pass == NULL)
        return 0;
    tp_block_saved saved;
    return carve_saved(layer, pass, NULL, &saved);
}

/* keep: whether the parts keep their own activations; the tensors between them are always there. */
static tp_status forward_pre(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                             tp_block_saved *saved, bool keep)
{
    tp_io norm1 = {.in = io->in, .out = saved->norm1_out};
    TPI_TRY(tp_norm_forward(ctx, layer->norm1, pass, &norm1, keep ? &saved->norm1 : NULL));
    tp_io attention = {.in = saved->norm1_out, .out = saved->middle, .residual = io->in};
    tp_io norm2 = {.in = saved->middle, .out = saved->norm2_out};
    tpi_norm_args norm;
    TPI_TRY(tpi_norm_prepare(ctx, layer->norm2, pass, &norm2, keep ? &saved->norm2 : NULL, &norm));
    TPI_TRY(tpi_attention_forward(ctx, layer->attention, pass, &attention, &norm, keep ? &saved->attention : NULL));
    tp_io mlp = {.in = saved->norm2_out, .out = io->out, .residual = saved->middle};
    return tp_mlp_forward(ctx, layer->mlp, pass, &mlp, keep ? &saved->mlp : NULL);
}

/* middle: x + attention(x); norm1_out: the first norm of it; norm2_out: the second norm's input. */
static tp_status forward_post(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                              tp_block_saved *saved, bool keep)
{
    tpi_norm_args norm;
    tp_io attention = {.in = io->in, .out = saved->middle, .residual = io->in},
          norm1 = {.in = saved->middle, .out = saved->norm1_out};
    TPI_TRY(tpi_norm_prepare(ctx, layer->norm1, pass, &norm1, keep ? &saved->norm1 : NULL, &norm));
    TPI_TRY(tpi_attention_forward(ctx, layer->attention, pass, &attention, &norm, keep ? &saved->attention : NULL));
    tp_io mlp = {.in = saved->norm1_out, .out = saved->norm2_out, .residual = saved->norm1_out},
          norm2 = {.in = saved->norm2_out, .out = io->out};
    TPI_TRY(tpi_norm_prepare(ctx, layer->norm2, pass, &norm2, keep ? &saved->norm2 : NULL, &norm));
    return tpi_mlp_forward(ctx, layer->mlp, pass, &mlp, &norm, keep ? &saved->mlp : NULL);
}

static tp_status resolve_pass(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, tp_tensor in, tp_pass *out)
{
    const tp_block_desc *desc = &layer->desc;
    bool dropout =
        desc->attention.probability_dropout > 0 || desc->attention.output_dropout > 0 || desc->mlp.output_dropout > 0;
    tpi_pass_need need = {layer->name, desc->sequence_parallel, dropout ? 1 : 0, layer->ctx};
    TPI_TRY(tpi_layer_pass(ctx, &need, pass, in.shape[0], out));
    tp_tensor expected = stream_view(layer, out);
    return tpi_layer_check_matrix(ctx, layer->name, "input", in, &expected);
}

static tp_status forward_with(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                              tp_block_saved *saved, bool keep)
{
    return layer->desc.place == TP_NORM_PRE ? forward_pre(ctx, layer, pass, io, saved, keep)
                                            : forward_post(ctx, layer, pass, io, saved, keep);
}

static tp_status forward_unsaved(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io)
{
    tp_block_saved between = {0};
    tp_tensor *view[3] = {&between.norm1_out, &between.middle, &between.norm2_out};
    for (int i = 0; i < 3; i++) {
        *view[i] = stream_view(layer, pass);
        TPI_TRY(tpi_scratch(ctx, tp_tensor_bytes(*view[i]), &view[i]->data));
    }
    return forward_with(ctx, layer, pass, io, &between, false);
}

tp_status tp_block_forward(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                           tp_block_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_block_forward: %s is NULL", layer == NULL ? "layer" : "io");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in, &resolved));
    const tp_tensor expected = stream_view(layer, &resolved);
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "output", io->out, &expected));
    TPI_TRY(tpi_layer_check_apart(ctx, layer->name, &(tp_io){.in = io->in, .out = io->out}));
    if (saved != NULL) {
        TPI_TRY(tpi_layer_check_memory(ctx, layer->name, saved->memory, saved->bytes,
                                       tp_block_saved_bytes(layer, &resolved)));
        carve_saved(layer, &resolved, saved->memory, saved);
        return forward_with(ctx, layer, &resolved, io, saved, true);
    }
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = forward_unsaved(ctx, layer, &resolved, io);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

static size_t carve_delayed(const tp_block *layer, const tp_pass *pass, void *memory, tp_block_delayed *delayed)
{
    tpi_carve carve = {memory, 0};
    for (int i = 0; i < 3; i++) {
        delayed->gradient[i] = stream_view(layer, pass);
        delayed->gradient[i].data = tpi_carve_take(&carve, tp_tensor_bytes(delayed->gradient[i]));
    }
    delayed->attention.bytes = tp_attention_delayed_bytes(layer->attention, pass);
    delayed->attention.memory = tpi_carve_take(&carve, delayed->attention.bytes);
    delayed->mlp.bytes = tp_mlp_delayed_bytes(layer->mlp, pass);
    delayed->mlp.memory = tpi_carve_take(&carve, delayed->mlp.bytes);
    return carve.used;
}

size_t tp_block_delayed_bytes(const tp_block *layer, const tp_pass *pass)
{
    if (layer == NULL || pass == NULL)
        return 0;
    tp_block_delayed delayed;
    return carve_delayed(layer, pass, NULL, &delayed);
}

/* gradient[0]: of norm2's output; [1]: of middle; [2]: of norm1's output. */
static tp_status backward_pre(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                              const tp_block_saved *saved, tp_block_delayed *delayed)
{
    tp_io mlp = {.in = io->in, .out = delayed->gradient[0]};
    TPI_TRY(tp_mlp_backward_input(ctx, layer->mlp, pass, &mlp, &saved->mlp, &delayed->mlp));
    tp_io norm2 = {.in = delayed->gradient[0], .out = delayed->gradient[1], .residual = io->in};
    TPI_TRY(tp_norm_backward_input(ctx, layer->norm2, pass, &norm2, &saved->norm2, &delayed->norm2));
    tp_io attention = {.in = delayed->gradient[1], .out = delayed->gradient[2]};
    TPI_TRY(
        tp_attention_backward_input(ctx, layer->attention, pass, &attention, &saved->attention, &delayed->attention));
    tp_io norm1 = {.in = delayed->gradient[2], .out = io->out, .residual = delayed->gradient[1]};
    return tp_norm_backward_input(ctx, layer->norm1, pass, &norm1, &saved->norm1, &delayed->norm1);
}

/* gradient[0]: of norm2's input; [1]: of norm1's output; [2]: of norm1's input. */
static tp_status backward_post(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                               const tp_block_saved *saved, tp_block_delayed *delayed)
{
    tp_io norm2 = {.in = io->in, .out = delayed->gradient[0]};
    TPI_TRY(tp_norm_backward_input(ctx, layer->norm2, pass, &norm2, &saved->norm2, &delayed->norm2));
    tp_io mlp = {.in = delayed->gradient[0], .out = delayed->gradient[1], .residual = delayed->gradient[0]};
    TPI_TRY(tp_mlp_backward_input(ctx, layer->mlp, pass, &mlp, &saved->mlp, &delayed->mlp));
    tp_io norm1 = {.in = delayed->gradient[1], .out = delayed->gradient[2]};
    TPI_TRY(tp_norm_backward_input(ctx, layer->norm1, pass, &norm1, &saved->norm1, &delayed->norm1));
    tp_io attention = {.in = delayed->gradient[2], .out = io->out, .residual = delayed->gradient[2]};
    return tp_attention_backward_input(ctx, layer->attention, pass, &attention, &saved->attention, &delayed->attention);
}

tp_status tp_block_backward_input(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                                  const tp_block_saved *saved, tp_block_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL || saved == NULL || delayed == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_block_backward_input: an argument is NULL");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in, &resolved));
    const tp_tensor expected = stream_view(layer, &resolved);
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "input gradient", io->out, &expected));
    TPI_TRY(tpi_layer_check_apart(ctx, layer->name, &(tp_io){.in = io->in, .out = io->out}));
    TPI_TRY(tpi_layer_check_memory(ctx, layer->name, delayed->memory, delayed->bytes,
                                   tp_block_delayed_bytes(layer, &resolved)));
    carve_delayed(layer, &resolved, delayed->memory, delayed);
    return layer->desc.place == TP_NORM_PRE ? backward_pre(ctx, layer, &resolved, io, saved, delayed)
                                            : backward_post(ctx, layer, &resolved, io, saved, delayed);
}

tp_status tp_block_backward_weight(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_block_saved *saved,
                                   const tp_block_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || saved == NULL || delayed == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_block_backward_weight: an argument is NULL");
    TPI_TRY(tp_mlp_backward_weight(ctx, layer->mlp, pass, &saved->mlp, &delayed->mlp));
    TPI_TRY(tp_norm_backward_weight(ctx, layer->norm2, pass, &saved->norm2, &delayed->norm2));
    TPI_TRY(tp_attention_backward_weight(ctx, layer->attention, pass, &saved->attention, &delayed->attention));
    return tp_norm_backward_weight(ctx, layer->norm1, pass, &saved->norm1, &delayed->norm1);
}

tp_status tp_block_backward(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                            const tp_block_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL || saved == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_block_backward: an argument is NULL");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in, &resolved));
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_block_delayed delayed = {.bytes = tp_block_delayed_bytes(layer, &resolved)};
    tp_status status = tpi_scratch(ctx, delayed.bytes, &delayed.memory);
    if (status == TP_OK)
        status = tp_block_backward_input(ctx, layer, &resolved, io, saved, &delayed);
    if (status == TP_OK)
        status = tp_block_backward_weight(ctx, layer, &resolved, saved, &delayed);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}
