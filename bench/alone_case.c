#include "alone_case.h"

#include "mirror.h"

#include "layers/attention.h"

#include <string.h>

/* By tp_activation; gated ones are no part of a GEMM. */
static const tpi_activation fused_activation[TP_ACTIVATION_COUNT] = {
    [TP_ACTIVATION_GELU] = TPI_ACT_GELU,
    [TP_ACTIVATION_GELU_TANH] = TPI_ACT_GELU_TANH,
    [TP_ACTIVATION_RELU] = TPI_ACT_RELU,
    [TP_ACTIVATION_RELU2] = TPI_ACT_RELU2,
};

static tp_comm *group_of(const bench_alone *alone)
{
    return tp_ctx_group(alone->layer->ctx, TP_AXIS_TP);
}

static int ranks_of(const bench_alone *alone)
{
    return tp_comm_size(group_of(alone));
}

static bool is_weight(const tp_param *param)
{
    return param->dims == 2;
}

static bool cut_by_columns(const bench_alone *alone, const tp_param *weight)
{
    return weight->shard_dim == 0 && ranks_of(alone) > 1;
}

static bool cut_by_rows(const bench_alone *alone, const tp_param *weight)
{
    return weight->shard_dim == 1 && ranks_of(alone) > 1;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t bytes_needed(const bench_alone *alone)
{
    const bench_layer *layer = alone->layer;
    int64_t most = 0;
    for (int i = 0; i < layer->params; i++) {
        const tp_param *param = layer->param[i];
        if (!is_weight(param))
            continue;
        int64_t out = param->value.shape[0], in = param->value.shape[1], wide = out > in ? out : in;
        int64_t activations = layer->pass.tokens * wide, received = alone->own[0] * ranks_of(alone) * wide;
        int64_t need = activations > out * in ? activations : out * in;
        need = need > received ? need : received;
        most = most > need ? most : need;
    }
    return (size_t)most * sizeof(float);
}

static double any_value(int64_t i, uint64_t salt)
{
    (void)salt;
    return (double)(i * 7 % 13 - 6) * 0.0625;
}

tp_status bench_alone_open(bench_alone *alone, bench_layer *layer, bool backward)
{
    *alone = (bench_alone){.layer = layer, .backward = backward};
    int ranks = ranks_of(alone), rank = tp_comm_rank(group_of(alone));
    tp_range own = tp_shard_range(layer->pass.tokens, ranks, rank);
    for (int peer = 0; peer < ranks; peer++) {
        tp_range range = tp_shard_range(layer->pass.tokens, ranks, peer);
        alone->rows[peer] = range.end - range.begin;
        alone->own[peer] = own.end - own.begin;
    }
    alone->bytes = bytes_needed(alone);
    void **const memory[] = {&alone->left, &alone->right, &alone->result};
    for (int i = 0; i < 3; i++) {
        TPI_TRY(tp_ctx_allocate(layer->ctx, TP_MEMORY_SAVED, alone->bytes, memory[i]));
        tp_dtype dtype = i < 2 ? layer->shape.dtype : TP_DTYPE_F32;
        TPI_TRY(
            bench_fill(layer->ctx, *memory[i], dtype, (int64_t)(alone->bytes / tp_dtype_size(dtype)), any_value, 0));
    }
    return TP_OK;
}

void bench_alone_close(bench_alone *alone)
{
    void *const memory[] = {alone->left, alone->right, alone->result};
    for (int i = 0; i < 3; i++)
        if (memory[i] != NULL)
            tp_ctx_release(alone->layer->ctx, TP_MEMORY_SAVED, memory[i], alone->bytes);
    *alone = (bench_alone){0};
}

/* ---- GEMMs and the attention core -------------------------------------------------------------------------------- */

/* The activation that is part of the up projection's GEMM, and of the down projection's input gradient. */
static tpi_activation activation_of(const bench_alone *alone)
{
    const bench_layer_shape *shape = &alone->layer->shape;
    return shape->command == BENCH_MLP ? fused_activation[shape->activation] : TPI_ACT_NONE;
}

static tp_status forward_gemm(const bench_alone *alone, const tp_param *weight, const tp_param *bias)
{
    const bench_layer *layer = alone->layer;
    const tp_tensor *value = &weight->value;
    bool partial = cut_by_rows(alone, weight);
    tpi_gemm_args args = {.rows = layer->pass.tokens,
                          .cols = value->shape[0],
                          .inner = value->shape[1],
                          .a = {alone->left, value->dtype, value->shape[1], 1},
                          .b = {value->data, value->dtype, value->stride[0], 1},
                          .b_packed = &tpi_param_internal_of(weight)->copies.forward,
                          .order = tpi_param_order(weight, 1),
                          .c = alone->result,
                          .c_dtype = partial ? TP_DTYPE_F32 : value->dtype,
                          .c_stride = value->shape[0]};
    if (!partial && bias != NULL) {
        args.bias = bias->value.data;
        args.bias_dtype = bias->value.dtype;
    }
    if (weight->shard_dim == 0 && activation_of(alone) != TPI_ACT_NONE) {
        args.activation = activation_of(alone);
        args.pre = alone->right;
        args.pre_stride = args.cols;
    }
    return tpi_gemm(layer->ctx->compute, &args);
}

static tp_status input_gemm(const bench_alone *alone, const tp_param *weight)
{
    const bench_layer *layer = alone->layer;
    const tp_tensor *value = &weight->value;
    tpi_gemm_args args = {.rows = layer->pass.tokens,
                          .cols = value->shape[1],
                          .inner = value->shape[0],
                          .a = {alone->left, value->dtype, value->shape[0], 1},
                          .b = {value->data, value->dtype, 1, value->stride[0]},
                          .b_packed = &tpi_param_internal_of(weight)->copies.backward,
                          .order = tpi_param_order(weight, 0),
                          .c = alone->result,
                          .c_dtype = cut_by_columns(alone, weight) ? TP_DTYPE_F32 : value->dtype,
                          .c_stride = value->shape[1]};
    if (weight->shard_dim == 1 && activation_of(alone) != TPI_ACT_NONE) {
        args.activation = activation_of(alone);
        args.act_input = alone->right;
        args.act_input_stride = args.cols;
    }
    return tpi_gemm(layer->ctx->compute, &args);
}

static tp_status weight_gemm(const bench_alone *alone, const tp_param *weight, const tp_param *bias)
{
    const bench_layer *layer = alone->layer;
    int64_t out = weight->value.shape[0], in = weight->value.shape[1];
    return tpi_gemm(layer->ctx->compute, &(tpi_gemm_args){.rows = out,
                                                         .cols = in,
                                                         .inner = layer->pass.tokens,
                                                         .a = {alone->left, layer->shape.dtype, 1, out},
                                                         .b = {alone->right, layer->shape.dtype, 1, in},
                                                         .c = alone->result,
                                                         .c_dtype = TP_DTYPE_F32,
                                                         .c_stride = in,
                                                         .accumulate = true,
                                                         .row_sums = bias != NULL ? bias->grad.data : NULL});
}

static tp_status core(const bench_alone *alone)
{
    const bench_layer *layer = alone->layer;
    const tp_attention_saved *saved = &layer->saved.attention;
    if (!alone->backward) {
        tpi_attention_args args = tpi_attention_core_args(layer->object, &layer->pass, saved);
        return tpi_attention(layer->ctx->compute, &args);
    }
    tp_tensor dcore = tp_tensor_2d(alone->left, saved->core.dtype, saved->core.shape[0], saved->core.shape[1]);
    tp_tensor dqkv = tp_tensor_2d(alone->result, saved->qkv.dtype, saved->qkv.shape[0], saved->qkv.shape[1]);
    tpi_arena_mark mark = tpi_arena_get_mark(&layer->ctx->scratch);
    tp_status status = tpi_attention_core_backward(layer->ctx, layer->object, &layer->pass, &dcore, saved, &dqkv);
    tpi_arena_release(&layer->ctx->scratch, mark);
    return status;
}

tp_status bench_alone_compute(void *arg)
{
    const bench_alone *alone = arg;
    const bench_layer *layer = alone->layer;
    for (int i = 0; i < layer->params; i++) {
        const tp_param *weight = layer->param[i];
        if (!is_weight(weight))
            continue;
        const tp_param *bias = i + 1 < layer->params && !is_weight(layer->param[i + 1]) ? layer->param[i + 1] : NULL;
        if (!alone->backward) {
            TPI_TRY(forward_gemm(alone, weight, bias));
            continue;
        }
        TPI_TRY(input_gemm(alone, weight));
        TPI_TRY(weight_gemm(alone, weight, bias));
    }
    return layer->shape.command == BENCH_ATTENTION ? core(alone) : TP_OK;
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

static void count(bench_alone *alone, double sent, double received)
{
    alone->moved += sent > received ? sent : received;
}

/* Every rank gets all rows. */
static tp_status gather(bench_alone *alone, int64_t cols)
{
    tp_dtype dtype = alone->layer->shape.dtype;
    int64_t own = alone->own[0], all = alone->layer->pass.tokens;
    double row = (double)cols * (double)tp_dtype_size(dtype);
    count(alone, row * (double)(own * (ranks_of(alone) - 1)), row * (double)(all - own));
    return tp_all_gather(alone->layer->ctx, group_of(alone), tp_tensor_2d(alone->left, dtype, own, cols),
                         tp_tensor_2d(alone->result, dtype, all, cols), NULL);
}

/* Every rank gets its rows' f32 partial sums from all: a reduce-scatter that adds nothing. */
static tp_status exchange(bench_alone *alone, int64_t cols)
{
    int64_t own = alone->own[0], all = alone->layer->pass.tokens;
    double row = (double)cols * (double)sizeof(float);
    count(alone, row * (double)(all - own), row * (double)(own * (ranks_of(alone) - 1)));
    return tp_all_to_all(alone->layer->ctx, group_of(alone), tp_tensor_2d(alone->left, TP_DTYPE_F32, all, cols),
                         alone->rows, tp_tensor_2d(alone->result, TP_DTYPE_F32, own * ranks_of(alone), cols),
                         alone->own);
}

/* An all-reduce is both. */
static tp_status reduce(bench_alone *alone, int64_t cols)
{
    TPI_TRY(exchange(alone, cols));
    return alone->layer->shape.sequence_parallel ? TP_OK : gather(alone, cols);
}

static tp_status move_for(bench_alone *alone, const tp_param *weight)
{
    int64_t out = weight->value.shape[0], in = weight->value.shape[1];
    bool column = cut_by_columns(alone, weight), row = cut_by_rows(alone, weight),
         sharded = alone->layer->shape.sequence_parallel;
    if (!alone->backward) {
        if (column && sharded)
            TPI_TRY(gather(alone, in));
        return row ? reduce(alone, out) : TP_OK;
    }
    if (row && sharded)
        TPI_TRY(gather(alone, out)); /* of dy */
    if (column && sharded)
        TPI_TRY(gather(alone, in)); /* of x, for the weight gradient */
    return column ? reduce(alone, in) : TP_OK;
}

tp_status bench_alone_comm(void *arg)
{
    bench_alone *alone = arg;
    alone->moved = 0;
    for (int i = 0; i < alone->layer->params; i++)
        if (is_weight(alone->layer->param[i]))
            TPI_TRY(move_for(alone, alone->layer->param[i]));
    return TP_OK;
}
