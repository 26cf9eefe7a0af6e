/* The middle of an attention layer: rotary embedding, softmax(QK^T)V, and the sums of dK, dV over the virtual ranks
 * that share a kv head. */
#include <math.h>

#include "layers/attention.h"

static const void *column(const tp_tensor *matrix, int64_t first)
{
    return (const char *)matrix->data + (size_t)first * tp_dtype_size(matrix->dtype);
}

tpi_attention_args tpi_attention_core_args(const tp_attention *layer, const tp_pass *pass,
                                           const tp_attention_saved *saved)
{
    const tp_attention_desc *desc = &layer->desc;
    const tpi_head_map *map = &layer->map;
    int64_t stride = saved->qkv.stride[0];
    return (tpi_attention_args){.rows = pass->tokens,
                                .heads = map->heads.end - map->heads.begin,
                                .kv_heads = map->kv_heads.end - map->kv_heads.begin,
                                .head_dim = desc->head_dim,
                                .dtype = desc->dtype,
                                .q = saved->qkv.data,
                                .k = column(&saved->qkv, layer->q_width),
                                .v = column(&saved->qkv, layer->q_width + layer->kv_width),
                                .q_stride = stride,
                                .k_stride = stride,
                                .v_stride = stride,
                                .out = saved->core.data,
                                .out_stride = saved->core.stride[0],
                                .lse = saved->lse.data,
                                .offsets = pass->offsets,
                                .sequences = pass->sequences > 0 ? pass->sequences : 1,
                                .kv_of_head = map->kv_of_head,
                                .scale = 1.0f / sqrtf((float)desc->head_dim),
                                .causal = desc->mask == TP_MASK_CAUSAL,
                                .window = desc->window,
                                .dropout = tpi_pass_dropout(pass, desc->probability_dropout),
                                .dropout_key =
                                    tpi_dropout_key(layer->ctx, desc->layer << 8 | TPI_SITE_PROBABILITIES, pass),
                                .first_token = pass->first_token,
                                .first_head = map->heads.begin,
                                .total_heads = desc->heads};
}

tp_status tpi_attention_rotate(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_tensor *qkv,
                               bool inverse)
{
    const tp_attention_desc *desc = &layer->desc;
    if (desc->rope_theta == 0)
        return TP_OK;
    return tpi_rope(ctx->compute, &(tpi_rope_args){.rows = pass->tokens,
                                                  .heads = (layer->q_width + layer->kv_width) / desc->head_dim,
                                                  .head_dim = desc->head_dim,
                                                  .dim = desc->rope_dim,
                                                  .x = qkv->data,
                                                  .dtype = desc->dtype,
                                                  .stride = qkv->stride[0],
                                                  .positions = pass->positions,
                                                  .offsets = pass->offsets,
                                                  .sequences = pass->sequences > 0 ? pass->sequences : 1,
                                                  .theta = desc->rope_theta,
                                                  .inverse = inverse});
}

/* What the sum of dK or dV over slots works on. */
typedef struct tpi_slot_sum {
    tp_ctx *ctx;
    const tp_attention *layer;
    int64_t rows;
    const float *slots; /* [slots, rows, head_dim] */
    const float *zeros; /* [rows, head_dim] */
    float *shared;      /* [shared kv heads, rows, head_dim], all-reduced over the group; NULL: none */
    float *sum;         /* [rows, head_dim] */
    tp_tensor gradient; /* [rows, kv heads here * head_dim] view of dqkv */
} tpi_slot_sum;

static int64_t head_elements(const tpi_slot_sum *s)
{
    return s->rows * s->layer->desc.head_dim;
}

/* Adds the slots of kv head `kv` in the tree's order, absent virtual ranks as +0, into `to`. The last leaf makes -0
 * into +0, as adding the empty ranks of any other layout would. */
static tp_status add_slots(const tpi_slot_sum *s, int64_t kv, float *to)
{
    const tpi_head_map *map = &s->layer->map;
    tpi_reduce_args args = {.inputs = map->blocks + 1,
                            .in_dtype = TP_DTYPE_F32,
                            .outputs = 1,
                            .single = to,
                            .out_dtype = TP_DTYPE_F32,
                            .rows = 1,
                            .cols = head_elements(s)};
    for (int v = 0; v < map->blocks; v++) {
        int32_t slot = map->slot_of[kv * map->blocks + v];
        args.leaf[v] = slot < 0 ? s->zeros : s->slots + slot * head_elements(s);
    }
    args.leaf[map->blocks] = s->zeros;
    return tpi_reduce(s->ctx->compute, &args);
}

static tp_status round_head(const tpi_slot_sum *s, int64_t kv, const float *sum)
{
    int64_t dim = s->layer->desc.head_dim;
    tp_tensor to = tp_tensor_cols(s->gradient, kv * dim, (kv + 1) * dim);
    return tpi_map(s->ctx->compute, &(tpi_map_args){.rows = s->rows,
                                                   .cols = dim,
                                                   .in = sum,
                                                   .in_dtype = TP_DTYPE_F32,
                                                   .in_stride = dim,
                                                   .out = to.data,
                                                   .out_dtype = to.dtype,
                                                   .out_stride = to.stride[0]});
}

static tp_status sum_local_heads(const tpi_slot_sum *s)
{
    const tpi_head_map *map = &s->layer->map;
    for (int64_t kv = 0; kv < map->kv_heads.end - map->kv_heads.begin; kv++) {
        if (map->shared_index[kv] >= 0)
            continue;
        if (map->holders[kv] == 1) { /* one slot in every layout: nothing to add */
            int32_t slot = -1;
            for (int v = 0; v < map->blocks && slot < 0; v++)
                slot = map->slot_of[kv * map->blocks + v];
            TPI_TRY(round_head(s, kv, s->slots + slot * head_elements(s)));
            continue;
        }
        TPI_TRY(add_slots(s, kv, s->sum));
        TPI_TRY(round_head(s, kv, s->sum));
    }
    return TP_OK;
}

static tp_status sum_shared_heads(const tpi_slot_sum *s)
{
    const tpi_head_map *map = &s->layer->map;
    int64_t elements = head_elements(s);
    TPI_TRY(tpi_map(s->ctx->compute, &(tpi_map_args){.rows = map->shared,
                                                    .cols = elements,
                                                    .in_dtype = TP_DTYPE_F32,
                                                    .in_stride = elements,
                                                    .out = s->shared,
                                                    .out_dtype = TP_DTYPE_F32,
                                                    .out_stride = elements}));
    for (int64_t kv = 0; kv < map->kv_heads.end - map->kv_heads.begin; kv++)
        if (map->shared_index[kv] >= 0)
            TPI_TRY(add_slots(s, kv, s->shared + map->shared_index[kv] * elements));
    tp_tensor all = tp_tensor_2d(s->shared, TP_DTYPE_F32, map->shared, elements);
    TPI_TRY(tp_all_reduce(s->ctx, tp_ctx_group(s->ctx, TP_AXIS_TP), all, all, NULL));
    for (int64_t kv = 0; kv < map->kv_heads.end - map->kv_heads.begin; kv++)
        if (map->shared_index[kv] >= 0)
            TPI_TRY(round_head(s, kv, s->shared + map->shared_index[kv] * elements));
    return TP_OK;
}

static tp_status prepare_sum(tp_ctx *ctx, const tp_attention *layer, int64_t rows, tpi_slot_sum *s)
{
    *s = (tpi_slot_sum){.ctx = ctx, .layer = layer, .rows = rows};
    size_t head = (size_t)head_elements(s) * sizeof(float);
    void *zeros, *shared = NULL, *sum;
    TPI_TRY(tpi_scratch(ctx, head, &zeros));
    TPI_TRY(tpi_scratch(ctx, head, &sum));
    if (layer->map.shared > 0)
        TPI_TRY(tpi_scratch(ctx, head * (size_t)layer->map.shared, &shared));
    s->zeros = zeros;
    s->sum = sum;
    s->shared = shared;
    return tpi_map(ctx->compute, &(tpi_map_args){.rows = 1,
                                                .cols = head_elements(s),
                                                .in_dtype = TP_DTYPE_F32,
                                                .in_stride = head_elements(s),
                                                .out = zeros,
                                                .out_dtype = TP_DTYPE_F32,
                                                .out_stride = head_elements(s)});
}

static tp_status sum_slots(tpi_slot_sum *s, const float *slots, const tp_tensor *dqkv, int64_t first_column)
{
    s->slots = slots;
    s->gradient = tp_tensor_cols(*dqkv, first_column, first_column + s->layer->kv_width);
    TPI_TRY(sum_local_heads(s));
    return s->layer->map.shared > 0 ? sum_shared_heads(s) : TP_OK;
}

tp_status tpi_attention_core_backward(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass,
                                      const tp_tensor *dcore, const tp_attention_saved *saved, const tp_tensor *dqkv)
{
    const tpi_head_map *map = &layer->map;
    size_t bytes = (size_t)map->slots * (size_t)pass->tokens * (size_t)layer->desc.head_dim * sizeof(float);
    void *dk, *dv;
    TPI_TRY(tpi_scratch(ctx, bytes, &dk));
    TPI_TRY(tpi_scratch(ctx, bytes, &dv));
    TPI_TRY(tpi_attention_grad(ctx->compute,
                               &(tpi_attention_grad_args){.forward = tpi_attention_core_args(layer, pass, saved),
                                                          .dout = dcore->data,
                                                          .dout_stride = dcore->stride[0],
                                                          .dq = dqkv->data,
                                                          .dq_stride = dqkv->stride[0],
                                                          .slots = map->slots,
                                                          .slot_of_head = map->slot_of_head,
                                                          .dk = dk,
                                                          .dv = dv}));
    tpi_slot_sum sum;
    TPI_TRY(prepare_sum(ctx, layer, pass->tokens, &sum));
    TPI_TRY(sum_slots(&sum, dk, dqkv, layer->q_width));
    TPI_TRY(sum_slots(&sum, dv, dqkv, layer->q_width + layer->kv_width));
    return tpi_attention_rotate(ctx, layer, pass, dqkv, true);
}
