/* Attention and its gradient: what kernels get, and which ones run. */
#include "cuda/attention.cuh"
#include "cuda/attention.h"

namespace tpi {

/* What the gradient needs of each query, with delta = sum of dout * out over a row of a head: one warp each, a fixed
 * order of lanes. Of a query that saw nothing all probabilities come out 0, whatever its lse. */
template <typename T> __global__ void __launch_bounds__(256) attention_known(const __grid_constant__ Attention at)
{
    const tpi_attention_args &args = at.args;
    const int64_t index = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;

    if (index >= args.rows * args.heads) /* the whole warp */
        return;
    const int64_t head = index / args.rows, row = index % args.rows;
    const T *out = static_cast<const T *>(args.out) + attention_element(row, args.out_stride, head, args.head_dim);
    const T *dout = static_cast<const T *>(at.dout) + attention_element(row, at.dout_stride, head, args.head_dim);
    float sum = 0.0f;

    for (int64_t d = threadIdx.x % 32; d < args.head_dim; d += 32)
        sum = __fmaf_rn(to_float(dout[d]), to_float(out[d]), sum);
    sum = lanes_sum<32>(sum);
    if (threadIdx.x % 32 == 0) {
        const float lse = args.lse[index];

        at.known[index] = make_float2(lse == -INFINITY ? 0.0f : __fmul_rn(lse, LOG2_E), sum);
    }
}

static bool is_vector(const void *data, tp_dtype dtype, int64_t stride)
{
    return is_aligned(data, tp_dtype_size(dtype), stride);
}

static bool is_pair(const void *data, tp_dtype dtype, int64_t stride)
{
    return reinterpret_cast<uintptr_t>(data) % (2 * tp_dtype_size(dtype)) == 0 && stride % 2 == 0;
}

/* Host arrays: as kernel arguments where they are short. */
static tp_status pass_arrays(tpi_stream *stream, Attention &at, const int32_t *slot_of_head)
{
    const tpi_attention_args &args = at.args;
    const void *staged = nullptr;
    tp_status status = TP_OK;

    at.packed = args.offsets != nullptr;
    at.sequences = args.sequences > 0 ? args.sequences : 1;
    at.length = args.rows / at.sequences;
    if (at.packed && at.sequences <= ATTENTION_SEQUENCES) {
        for (int64_t i = 0; i <= at.sequences; i++)
            at.own_offsets[i] = args.offsets[i];
    } else if (at.packed) {
        status = tpi_cuda_stage(stream, args.offsets, sizeof(int64_t) * static_cast<size_t>(at.sequences + 1), &staged);
        at.offsets = static_cast<const int64_t *>(staged);
    }
    const size_t bytes = sizeof(int32_t) * static_cast<size_t>(args.heads);
    if (args.heads <= ATTENTION_HEADS) {
        for (int64_t head = 0; head < args.heads; head++) {
            at.own_kv[head] = args.kv_of_head[head];
            at.own_slot[head] = slot_of_head != nullptr ? slot_of_head[head] : 0;
        }
        return status;
    }
    if (status == TP_OK)
        status = tpi_cuda_stage(stream, args.kv_of_head, bytes, &staged);
    at.kv_of_head = static_cast<const int32_t *>(staged);
    if (status == TP_OK && slot_of_head != nullptr) {
        status = tpi_cuda_stage(stream, slot_of_head, bytes, &staged);
        at.slot_of_head = static_cast<const int32_t *>(staged);
    }
    return status;
}

static tp_status describe(tpi_stream *stream, const tpi_attention_args &args, const int32_t *slot_of_head,
                          Attention &at)
{
    const size_t element = tp_dtype_size(args.dtype);

    at.args = args;
    at.dropout = dropout_of(args.dropout, args.dropout_key);
    at.vector = is_vector(args.q, args.dtype, args.q_stride) && is_vector(args.k, args.dtype, args.k_stride) &&
                is_vector(args.v, args.dtype, args.v_stride) && static_cast<size_t>(args.head_dim) * element % 16 == 0;
    at.pairs = is_pair(args.out, args.dtype, args.out_stride) && args.head_dim % 2 == 0;
    return pass_arrays(stream, at, slot_of_head);
}

/* One block a tile of rows and head (or slot). */
static tp_status launch(tpi_stream *stream, const AttentionKernel &kernel, Attention &at, int64_t heads,
                        const char *name)
{
    at.places = at.packed ? at.args.rows / kernel.tile + at.sequences
                          : at.length * at.sequences / kernel.tile + at.sequences;
    const int64_t blocks = at.places * heads;
    tp_status status = tpi_cuda_check(stream,
                                      cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel.function),
                                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                           static_cast<int>(kernel.shared_bytes)),
                                      name);

    if (status == TP_OK && blocks > INT32_MAX)
        status = tpi_cuda_check(stream, cudaErrorInvalidConfiguration, name);
    if (status != TP_OK || blocks == 0)
        return status;
    kernel.function<<<static_cast<unsigned>(blocks), kernel.threads, kernel.shared_bytes, tpi_cuda_handle(stream)>>>(
        at);
    return tpi_cuda_check(stream, cudaGetLastError(), name);
}

static tp_status attention_grad(tpi_stream *stream, const tpi_attention_grad_args &args)
{
    const tpi_attention_args &forward = args.forward;
    const bool f32 = forward.dtype == TP_DTYPE_F32;
    Attention at = {};
    tp_status status = describe(stream, forward, args.slot_of_head, at);
    void *known;

    if (status == TP_OK)
        status = tpi_cuda_workspace(stream, sizeof(float2) * static_cast<size_t>(forward.rows * forward.heads), &known);
    if (status != TP_OK || tpi_cuda_dry(stream))
        return status;
    at.dout = args.dout;
    at.dout_stride = args.dout_stride;
    at.dq = args.dq;
    at.dq_stride = args.dq_stride;
    at.slots = args.slots;
    at.dk = args.dk;
    at.dv = args.dv;
    at.known = static_cast<float2 *>(known);
    at.vector = at.vector && is_vector(args.dout, forward.dtype, args.dout_stride);
    at.pairs = is_pair(args.dq, forward.dtype, args.dq_stride) && forward.head_dim % 2 == 0;
    with_dtype(forward.dtype, [&](auto zero) {
        attention_known<decltype(zero)>
            <<<static_cast<unsigned>(divided_up(forward.rows * forward.heads, 8)), 256, 0, tpi_cuda_handle(stream)>>>(
                at);
    });
    status = tpi_cuda_check(stream, cudaGetLastError(), "delta of attention_grad");
    if (status == TP_OK)
        status = launch(stream,
                        f32 ? attention_query_grad_f32(forward.head_dim)
                            : attention_query_grad_mma(forward.dtype, forward.head_dim),
                        at, forward.heads, "queries of attention_grad");
    if (status == TP_OK && args.slots > 0)
        status = launch(stream,
                        f32 ? attention_key_grad_f32(forward.head_dim)
                            : attention_key_grad_mma(forward.dtype, forward.head_dim),
                        at, args.slots, "keys of attention_grad");
    return status;
}

} // namespace tpi

tp_status tpi_cuda_attention(tpi_stream *stream, const tpi_attention_args *args)
{
    tpi::Attention at = {};
    tp_status status = tpi_cuda_attention_check(stream, args);

    if (status == TP_OK && (args->rows == 0 || args->heads == 0))
        return TP_OK;
    if (status == TP_OK)
        status = tpi::describe(stream, *args, nullptr, at);
    if (status != TP_OK || tpi_cuda_dry(stream))
        return status;
    return tpi::launch(stream,
                       args->dtype == TP_DTYPE_F32 ? tpi::attention_forward_f32(args->head_dim)
                                                   : tpi::attention_forward_mma(args->dtype, args->head_dim),
                       at, args->heads, "attention");
}

tp_status tpi_cuda_attention_grad(tpi_stream *stream, const tpi_attention_grad_args *args)
{
    tp_status status = tpi_cuda_attention_grad_check(stream, args);

    if (status != TP_OK || args->forward.rows == 0)
        return status;
    return tpi::attention_grad(stream, *args);
}
