/* dQ of attention of 16-bit tensors, on tensor cores: attention_grad_mma.cuh. */
#include "cuda/attention_grad_mma.cuh"

namespace tpi {

template <int Dim> struct QueryGrad {
    static constexpr int Threads = GradShape<Dim>::Warps * 32;
    static constexpr int Count = Dim == 128 ? 4 : 2; /* times 8 keys at a time */
    static constexpr int Blocks = Dim > 64 ? 1 : 2; /* a multiprocessor, at least */
};

template <int Dim> __device__ __forceinline__ AttentionBlock query_grad_block(const Attention &at)
{
    return attention_block(at, at.args.heads, GradShape<Dim>::Own, true);
}

template <typename T, int Dim>
__device__ __forceinline__ void query_grad_store(const Attention &at, const float (&sum)[Dim / 8][4])
{
    const AttentionBlock block = query_grad_block<Dim>(at);
    const int lane = threadIdx.x & 31, first_query = block.place.begin + threadIdx.x / 32 * 16 + lane / 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = first_query + h * 8;

        if (query >= block.place.length)
            continue;
        T *to = static_cast<T *>(at.dq) +
                attention_element(block.place.first_row + query, at.dq_stride, block.head, at.args.head_dim);
#pragma unroll
        for (int n = 0; n < Dim / 8; n++) {
            const int d = n * 8 + lane % 4 * 2;
            const float x = __fmul_rn(sum[n][h * 2], at.args.scale), y = __fmul_rn(sum[n][h * 2 + 1], at.args.scale);

            if (at.pairs && d < at.args.head_dim) {
                *reinterpret_cast<uint32_t *>(to + d) = packed_pair<T>(x, y);
            } else {
                if (d < at.args.head_dim)
                    to[d] = from_float<T>(x);
                if (d + 1 < at.args.head_dim)
                    to[d + 1] = from_float<T>(y);
            }
        }
    }
}

template <int Dim, int Count>
__device__ __forceinline__ void query_grad_mask(const Attention &at, int length, int first_query, int first_key,
                                                GradScores<Count> &product)
{
    const int lane = late(threadIdx.x & 31), query = first_query + lane / 4;
    const AttentionRange seen[2] = {attention_keys(at, query, query + 1, length),
                                    attention_keys(at, query + 8, query + 9, length)};

    grad_mask<Count>(seen, first_key + lane % 4 * 2, product);
}

/* What comes back through dropped probabilities is 0. */
template <int Dim, int Count>
__device__ __forceinline__ void query_grad_drop(const Attention &at, int first_query, int first_key,
                                                GradScores<Count> &product)
{
    const AttentionBlock block = query_grad_block<Dim>(at);
    const int64_t row = block.place.first_row + first_query + (threadIdx.x & 31) / 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t kept = attention_kept_bits<Count>(at, row + h * 8, block.head, first_key);

#pragma unroll
        for (int i = 0; i < 2 * Count; i++) {
            float &x = product.gradient[i / 2][h * 2 + i % 2];

            x = kept >> i & 1 ? __fmul_rn(x, at.dropout.scale) : 0.0f;
        }
    }
}

template <typename T, int Dim>
__global__ void __launch_bounds__(QueryGrad<Dim>::Threads, QueryGrad<Dim>::Blocks)
    query_grad_mma_kernel(const __grid_constant__ Attention at)
{
    typedef GradShape<Dim> Shape;
    typedef QueryGrad<Dim> Kernel;
    extern __shared__ __align__(128) unsigned char shared[];
    GradTiles<Dim> &tiles = *reinterpret_cast<GradTiles<Dim> *>(shared);
    const tpi_attention_args &args = at.args;
    const AttentionBlock block = query_grad_block<Dim>(at);
    const AttentionPlace place = block.place;

    if (place.begin >= place.length)
        return;
    const AttentionRange keys =
        attention_keys(at, place.begin, min(place.begin + Shape::Own, place.length), place.length);
    const int own_row = threadIdx.x / 32 * 16, first_query = place.begin + own_row;
    const int end_query = min(first_query + 16, place.length); /* a warp may have no query at all */
    const AttentionRange none = {0, 0};
    const AttentionRange seen =
        first_query < end_query ? attention_keys(at, first_query, end_query, place.length) : none;
    const AttentionRange common = attention_common_keys(at, first_query, end_query, place.length);
    const int64_t kv_head = attention_kv_head(at, block.head), first = place.first_row + place.begin;
    int key = keys.begin / Shape::Other * Shape::Other, stage = 0;
    AttentionRows<Shape::Own, Dim, Kernel::Threads> own_rows;
    AttentionRows<Shape::Other, Dim, Kernel::Threads> key_rows, value_rows;
    GradOwn<Dim> own;
    float2 known[2];

    attention_begin(own_rows, at,
                    static_cast<const T *>(args.q) + attention_element(first, args.q_stride, block.head, args.head_dim),
                    args.q_stride);
    attention_next(own_rows, at, args.q, args.q_stride, place.length - place.begin, tiles.own(0));
    attention_begin(own_rows, at,
                    static_cast<const T *>(at.dout) +
                        attention_element(first, at.dout_stride, block.head, args.head_dim),
                    at.dout_stride);
    attention_next(own_rows, at, at.dout, at.dout_stride, place.length - place.begin, tiles.own(1));
    copies_commit();
    attention_begin(key_rows, at,
                    static_cast<const T *>(args.k) +
                        attention_element(place.first_row + key, args.k_stride, kv_head, args.head_dim),
                    args.k_stride);
    attention_begin(value_rows, at,
                    static_cast<const T *>(args.v) +
                        attention_element(place.first_row + key, args.v_stride, kv_head, args.head_dim),
                    args.v_stride);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = first_query + (threadIdx.x & 31) / 4 + h * 8;

        known[h] =
            query < place.length ? at.known[block.head * args.rows + place.first_row + query] : make_float2(0.0f, 0.0f);
    }
    if (Shape::Kept) { /* else they are looked at together with the first tile */
        copies_wait<0>();
        __syncthreads(); /* the block's own rows are here */
    }
    grad_take<Dim>(own, tiles.own(0) + own_row * Shape::Line, tiles.own(1) + own_row * Shape::Line);
    if (Shape::Kept)
        __syncthreads(); /* and taken by all, before others come to their place */
    attention_next(key_rows, at, args.k, args.k_stride, place.length - key, tiles.other(0, 0));
    attention_next(value_rows, at, args.v, args.v_stride, place.length - key, tiles.other(0, 1));
    copies_commit();

    float sum[Dim / 8][4] = {};
#pragma unroll 1
    for (; key < keys.end; key += Shape::Other, stage ^= 1) {
        copies_wait<0>();
        __syncthreads(); /* the tile is here, and all are done with the one before */
        if (key + Shape::Other < keys.end) {
            attention_next(key_rows, at, args.k, args.k_stride, place.length - key - Shape::Other,
                           tiles.other(stage ^ 1, 0));
            attention_next(value_rows, at, args.v, args.v_stride, place.length - key - Shape::Other,
                           tiles.other(stage ^ 1, 1));
            copies_commit();
        }
#pragma unroll 1
        for (int c = 0; c < Shape::Other; c += 8 * Kernel::Count) {
            const uint16_t *other = tiles.other(stage, 0) + c * Shape::Line;
            GradScores<Kernel::Count> product;

            if (!is_touched(seen, key + c, 8 * Kernel::Count))
                continue;
            grad_products<T, Dim>(own, other, other + Shape::Other * Shape::Line, product);
            if (!is_covered(common, key + c, 8 * Kernel::Count))
                query_grad_mask<Dim>(at, place.length, first_query, key + c, product);
            if (at.dropout.on)
                query_grad_drop<Dim>(at, first_query, key + c, product);
#pragma unroll
            for (int i = 0; i < 4 * Kernel::Count; i++)
                grad_soften(args.scale * LOG2_E, known[i / 2 % 2], product.score[i / 4][i % 4],
                            product.gradient[i / 4][i % 4]);
            grad_add<T, Dim, Shape::Line>(product.gradient, other, sum);
        }
    }
    query_grad_store<T, Dim>(at, sum);
}

template <typename T, int Dim> static AttentionKernel query_grad_kernel()
{
    return {query_grad_mma_kernel<T, Dim>, GradShape<Dim>::Own, QueryGrad<Dim>::Threads, sizeof(GradTiles<Dim>)};
}

template <typename T> static AttentionKernel query_grad_of(int64_t head_dim)
{
    return attention_kernel_of(head_dim, [](auto size) { return query_grad_kernel<T, decltype(size)::value>(); });
}

AttentionKernel attention_query_grad_mma(tp_dtype dtype, int64_t head_dim)
{
    return dtype == TP_DTYPE_BF16 ? query_grad_of<__nv_bfloat16>(head_dim) : query_grad_of<__half>(head_dim);
}

} // namespace tpi
