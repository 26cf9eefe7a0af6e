/* Work of an op, counted from the struct that its kernel gets. Bytes: each operand once. */
#include "core/ops_check.h"

static double size_of(tp_dtype dtype)
{
    return (double)tp_dtype_size(dtype);
}

/* Inner indices that take part. */
static double used_inner(const tpi_gemm_args *args)
{
    if (!args->order)
        return (double)args->inner;
    double used = 0;
    for (int i = 0; i < args->order->segments; i++)
        used += (double)args->order->segment[i].length;
    return used;
}

tpi_cost tpi_gemm_cost(const tpi_gemm_args *args)
{
    double rows = (double)args->rows, cols = (double)args->cols, inner = used_inner(args);
    double outputs = 1.0 + (args->accumulate ? 1.0 : 0.0) + (args->pre ? 1.0 : 0.0) + (args->act_input ? 1.0 : 0.0) +
                     (args->residual ? 1.0 : 0.0);
    return (tpi_cost){
        .flops = 2.0 * rows * cols * inner,
        .bytes = (rows + cols) * inner * size_of(args->a.dtype) + rows * cols * outputs * size_of(args->c_dtype),
    };
}

/* Pairs (query, key) of one sequence that the mask lets through. */
static double visible_pairs(const tpi_attention_args *args, double length)
{
    double window = args->window > 0 && (double)args->window < length ? (double)args->window : length;
    double causal = window * (window + 1) / 2 + (length - window) * window; /* keys up to the query */
    return args->causal ? causal : 2 * causal - length;
}

static double all_pairs(const tpi_attention_args *args)
{
    if (!args->offsets) {
        double sequences = args->sequences > 0 ? (double)args->sequences : 1;
        return sequences * visible_pairs(args, (double)args->rows / sequences);
    }
    double pairs = 0;
    for (int64_t i = 0; i < args->sequences; i++)
        pairs += visible_pairs(args, (double)(args->offsets[i + 1] - args->offsets[i]));
    return pairs;
}

tpi_cost tpi_attention_cost(const tpi_attention_args *args)
{
    double heads = (double)args->heads, kv_heads = (double)args->kv_heads, dim = (double)args->head_dim;
    return (tpi_cost){
        .flops = 4.0 * all_pairs(args) * heads * dim, /* Q K^T and P V */
        .bytes = (double)args->rows * dim * 2.0 * (heads + kv_heads) * size_of(args->dtype),
    };
}

tpi_cost tpi_attention_grad_cost(const tpi_attention_grad_args *args)
{
    const tpi_attention_args *forward = &args->forward;
    tpi_cost cost = tpi_attention_cost(forward);
    double rows = (double)forward->rows, dim = (double)forward->head_dim;
    return (tpi_cost){
        .flops = 2.5 * cost.flops, /* Q K^T again, dP, dV, dQ, dK */
        .bytes = cost.bytes +
                 rows * dim * 2.0 * ((double)forward->heads * size_of(forward->dtype) + 4.0 * (double)args->slots),
    };
}
