/* Attention of f32 tensors in chains of fused multiply-adds. A thread has four rows, whose columns it shares with its
 * neighbours. */
#include "cuda/attention_tile.cuh"

namespace tpi {

template <int Dim> struct F32Forward {
    static constexpr int Queries = Dim > 128 ? 32 : 64, Keys = Dim > 128 ? 16 : 32, Threads = Queries * 2;
    static constexpr int Line = Dim + 4, ScoreLine = Keys + 4;
    float query[Queries * Line];
    float key[Keys * Line], value[Keys * Line];
    float probability[Queries * ScoreLine];
};

/* A thread's four queries. */
template <int Dim> struct F32Rows {
    float maximum[4], sum[4]; /* the maximum of scores in powers of 2; sums of this thread's keys */
    float out[4][Dim / 8];    /* columns 4 x + 32 i + 0..3 of thread x of eight */
};

/* Dot products of four rows with `Count` others that are eight lines apart, as chains over the head dimension. */
template <int Dim, int Count, int Apart>
__device__ __forceinline__ void f32_products(const float *own, const float *other, float (&product)[4][Count])
{
    constexpr int Line = Dim + 4;

#pragma unroll
    for (int i = 0; i < 4 * Count; i++)
        product[i / Count][i % Count] = 0.0f;
#pragma unroll 2
    for (int d = 0; d < Dim; d += 4) {
        float4 left[4], right[Count];

#pragma unroll
        for (int i = 0; i < 4; i++)
            left[i] = *reinterpret_cast<const float4 *>(own + i * Line + d);
#pragma unroll
        for (int j = 0; j < Count; j++)
            right[j] = *reinterpret_cast<const float4 *>(other + j * Apart * Line + d);
#pragma unroll
        for (int i = 0; i < 4 * Count; i++) {
            const float4 a = left[i / Count], b = right[i % Count];
            float sum = product[i / Count][i % Count];

            sum = __fmaf_rn(a.x, b.x, sum);
            sum = __fmaf_rn(a.y, b.y, sum);
            sum = __fmaf_rn(a.z, b.z, sum);
            product[i / Count][i % Count] = __fmaf_rn(a.w, b.w, sum);
        }
    }
}

/* sum[four rows, columns] += weight[four rows, Count] other[Count, columns]; a thread's columns are 4 x + 4 Across i +
 * 0..3. Weights are lines of WeightLine. */
template <int Dim, int Count, int Across, int WeightLine>
__device__ __forceinline__ void f32_spread(const float *weight, const float *other, float (&sum)[4][Dim / Across])
{
#pragma unroll 1
    for (int k = 0; k < Count; k += 4) {
        float4 left[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            left[i] = *reinterpret_cast<const float4 *>(weight + i * WeightLine + k);
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int d = 0; d < Dim / Across; d += 4) {
                const float4 right = *reinterpret_cast<const float4 *>(other + (k + j) * (Dim + 4) + d * Across);

#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float x = j == 0 ? left[i].x : j == 1 ? left[i].y : j == 2 ? left[i].z : left[i].w;

                    sum[i][d] = __fmaf_rn(x, right.x, sum[i][d]);
                    sum[i][d + 1] = __fmaf_rn(x, right.y, sum[i][d + 1]);
                    sum[i][d + 2] = __fmaf_rn(x, right.z, sum[i][d + 2]);
                    sum[i][d + 3] = __fmaf_rn(x, right.w, sum[i][d + 3]);
                }
            }
        }
    }
}

/* Four rows of a thread's columns, rows from `row` on that exist. */
template <int Dim, int Across>
__device__ __forceinline__ void f32_store(const Attention &at, float *to, int64_t stride, int rows,
                                          const float (&scale)[4], const float (&sum)[4][Dim / Across])
{
    const int first = threadIdx.x % Across * 4;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i >= rows)
            continue;
#pragma unroll
        for (int d = 0; d < Dim / Across; d++) {
            const int col = first + d / 4 * 4 * Across + d % 4;

            if (col < at.args.head_dim)
                to[i * stride + col] = __fmul_rn(sum[i][d], scale[i]);
        }
    }
}

/* ---- forward ---- */

template <int Dim>
__device__ __forceinline__ void f32_soften(const Attention &at, const AttentionPlace &place, int64_t head,
                                           int first_query, int first_key, float (&score)[4][F32Forward<Dim>::Keys / 8],
                                           F32Rows<Dim> &rows, float *probability)
{
    constexpr int Count = F32Forward<Dim>::Keys / 8;
    const int x = threadIdx.x % 8;
    const float scale = at.args.scale * LOG2_E;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const AttentionRange seen = attention_keys(at, first_query + i, first_query + i + 1, place.length);
        float maximum = rows.maximum[i];

#pragma unroll
        for (int j = 0; j < Count; j++) {
            score[i][j] = is_within(seen, first_key + x + 8 * j) ? __fmul_rn(score[i][j], scale) : -INFINITY;
            maximum = fmaxf(maximum, score[i][j]);
        }
#pragma unroll
        for (int distance = 4; distance > 0; distance /= 2)
            maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, distance));
        /* A query that has seen nothing has maximum -inf, for which 0 stands in: -inf - -inf would be NaN. */
        const float base = maximum == -INFINITY ? 0.0f : maximum,
                    rescale = power_of_2(__fsub_rn(rows.maximum[i], base));
        const uint64_t mask_row = attention_mask_row(at, place.first_row + first_query + i, head);
        float sum = __fmul_rn(rows.sum[i], rescale);

#pragma unroll
        for (int j = 0; j < Count; j++) {
            float p = power_of_2(__fsub_rn(score[i][j], base));

            sum = __fadd_rn(sum, p);
            if (at.dropout.on && !is_kept(at.dropout, mask_row + static_cast<uint64_t>(first_key + x + 8 * j)))
                p = 0.0f;
            probability[i * F32Forward<Dim>::ScoreLine + x + 8 * j] = p;
        }
#pragma unroll
        for (int d = 0; d < Dim / 8; d++)
            rows.out[i][d] = __fmul_rn(rows.out[i][d], rescale);
        rows.sum[i] = sum;
        rows.maximum[i] = maximum;
    }
}

template <int Dim>
__global__ void __launch_bounds__(F32Forward<Dim>::Threads, Dim > 64 ? 2 : 3)
    forward_f32_kernel(const __grid_constant__ Attention at)
{
    typedef F32Forward<Dim> Tiles;
    extern __shared__ __align__(128) unsigned char shared[];
    Tiles &tiles = *reinterpret_cast<Tiles *>(shared);
    const tpi_attention_args &args = at.args;
    const int64_t head = blockIdx.x / at.places, kv_head = attention_kv_head(at, head);
    const AttentionPlace place = attention_place(at, at.places - 1 - blockIdx.x % at.places, Tiles::Queries);
    const int x = threadIdx.x % 8, own = threadIdx.x / 8 * 4, first_query = place.begin + own;

    if (place.begin >= place.length)
        return;
    const AttentionRange keys =
        attention_keys(at, place.begin, min(place.begin + Tiles::Queries, place.length), place.length);
    attention_load_f32<Tiles::Queries, Dim, Tiles::Threads>(
        tiles.query,
        static_cast<const float *>(args.q) +
            attention_element(place.first_row + place.begin, args.q_stride, head, args.head_dim),
        args.q_stride, place.length - place.begin, at);

    F32Rows<Dim> rows;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        rows.maximum[i] = -INFINITY;
        rows.sum[i] = 0.0f;
#pragma unroll
        for (int d = 0; d < Dim / 8; d++)
            rows.out[i][d] = 0.0f;
    }
    for (int key = keys.begin / Tiles::Keys * Tiles::Keys; key < keys.end; key += Tiles::Keys) {
        const int64_t row = place.first_row + key;

        attention_load_f32<Tiles::Keys, Dim, Tiles::Threads>(
            tiles.key,
            static_cast<const float *>(args.k) + attention_element(row, args.k_stride, kv_head, args.head_dim),
            args.k_stride, place.length - key, at);
        attention_load_f32<Tiles::Keys, Dim, Tiles::Threads>(
            tiles.value,
            static_cast<const float *>(args.v) + attention_element(row, args.v_stride, kv_head, args.head_dim),
            args.v_stride, place.length - key, at);
        copies_commit();
        copies_wait<0>();
        __syncthreads(); /* the tile is here */
        float score[4][Tiles::Keys / 8];

        f32_products<Dim, Tiles::Keys / 8, 8>(tiles.query + own * Tiles::Line, tiles.key + x * Tiles::Line, score);
        f32_soften<Dim>(at, place, head, first_query, key, score, rows, tiles.probability + own * Tiles::ScoreLine);
        __syncwarp(); /* a query's probabilities are those of eight lanes */
        f32_spread<Dim, Tiles::Keys, 8, Tiles::ScoreLine>(tiles.probability + own * Tiles::ScoreLine,
                                                          tiles.value + x * 4, rows.out);
        __syncthreads(); /* all are done with the tile before it is filled again */
    }
    float factor[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float sum = lanes_sum<8>(rows.sum[i]);

        factor[i] = sum == 0.0f ? 0.0f : __fdiv_rn(at.dropout.scale, sum);
        if (args.lse != nullptr && x == 0 && first_query + i < place.length)
            args.lse[head * args.rows + place.first_row + first_query + i] =
                sum == 0.0f ? -INFINITY : __fmaf_rn(rows.maximum[i], LN_2, vf_log(sum));
    }
    f32_store<Dim, 8>(at,
                      static_cast<float *>(args.out) +
                          attention_element(place.first_row + first_query, args.out_stride, head, args.head_dim),
                      args.out_stride, place.length - first_query, factor, rows.out);
}

template <int Dim> static AttentionKernel forward_kernel()
{
    return {forward_f32_kernel<Dim>, F32Forward<Dim>::Queries, F32Forward<Dim>::Threads, sizeof(F32Forward<Dim>)};
}

AttentionKernel attention_forward_f32(int64_t head_dim)
{
    return attention_kernel_of(head_dim, [](auto size) { return forward_kernel<decltype(size)::value>(); });
}

/* ---- gradient: attention_grad_mma.cuh says what is computed ---- */

/* A thread has four own rows, queries or keys; sixteen neighbours share them. */
template <int Dim> struct F32Grad {
    static constexpr int Own = Dim > 128 ? 16 : 32, Other = Dim > 128 ? 16 : 32, Threads = Own * 4;
    static constexpr int Line = Dim + 4, WeightLine = Other + 4;
    float own[2][Own * Line], other[2][Other * Line];
    float weight[2][Own * WeightLine]; /* probabilities that were used, and dS */
};

/* Of a query: lse in powers of 2, and delta. */
static __device__ __forceinline__ float2 f32_known(const Attention &at, const AttentionPlace &place, int64_t head,
                                                   int query)
{
    return query < place.length ? at.known[head * at.args.rows + place.first_row + query] : make_float2(0.0f, 0.0f);
}

static __device__ __forceinline__ bool f32_kept(const Attention &at, const AttentionPlace &place, int64_t head,
                                                int query, int key)
{
    return is_kept(at.dropout, attention_mask_row(at, place.first_row + query, head) + static_cast<uint64_t>(key));
}

/* Own rows against one tile of the other side: weights of both kinds, in shared memory. Queries says which side is
 * which. */
template <int Dim, bool Queries>
__device__ __forceinline__ void f32_weights(const Attention &at, const AttentionPlace &place, int64_t head,
                                            int first_other, F32Grad<Dim> &tiles)
{
    typedef F32Grad<Dim> Tiles;
    constexpr int Count = Tiles::Other / 16;
    const int x = threadIdx.x % 16, own = threadIdx.x / 16 * 4;
    float score[4][Count], gradient[4][Count];
    float2 known[Queries ? 4 : Count];

#pragma unroll
    for (int i = 0; i < (Queries ? 4 : Count); i++)
        known[i] = f32_known(at, place, head, Queries ? place.begin + own + i : first_other + x + 16 * i);
    f32_products<Dim, Count, 16>(tiles.own[0] + own * Tiles::Line, tiles.other[0] + x * Tiles::Line, score);
    f32_products<Dim, Count, 16>(tiles.own[1] + own * Tiles::Line, tiles.other[1] + x * Tiles::Line, gradient);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int mine = place.begin + own + i;
        const AttentionRange seen = Queries ? attention_keys(at, mine, mine + 1, place.length)
                                            : attention_queries(at, mine, mine + 1, place.length);

#pragma unroll
        for (int j = 0; j < Count; j++) {
            const int other = first_other + x + 16 * j, to = (own + i) * Tiles::WeightLine + x + 16 * j;
            const float2 query = known[Queries ? i : j];
            const bool is_seen = is_within(seen, other);
            const bool kept =
                !at.dropout.on || f32_kept(at, place, head, Queries ? mine : other, Queries ? other : mine);
            const float p = is_seen ? power_of_2(__fmaf_rn(score[i][j], at.args.scale * LOG2_E, -query.x)) : 0.0f;
            const float back = kept ? __fmul_rn(gradient[i][j], at.dropout.scale) : 0.0f;

            if (!Queries)
                tiles.weight[0][to] = kept ? __fmul_rn(p, at.dropout.scale) : 0.0f;
            tiles.weight[1][to] = is_seen ? __fmul_rn(p, __fsub_rn(back, query.y)) : 0.0f;
        }
    }
    __syncwarp(); /* a row's weights are those of sixteen lanes */
}

/* Rows of two tensors of one head each, that side by side make one side of the products. */
template <int Dim, int Rows>
__device__ __forceinline__ void f32_load_side(const Attention &at, float (*tile)[Rows * (Dim + 4)], bool queries,
                                              int64_t head, const AttentionPlace &place, int begin)
{
    const tpi_attention_args &args = at.args;
    const int64_t row = place.first_row + begin, stride0 = queries ? args.q_stride : args.k_stride,
                  stride1 = queries ? at.dout_stride : args.v_stride;
    const float *from0 = static_cast<const float *>(queries ? args.q : args.k),
                *from1 = static_cast<const float *>(queries ? at.dout : args.v);

    attention_load_f32<Rows, Dim, F32Grad<Dim>::Threads>(
        tile[0], from0 + attention_element(row, stride0, head, args.head_dim), stride0, place.length - begin, at);
    attention_load_f32<Rows, Dim, F32Grad<Dim>::Threads>(
        tile[1], from1 + attention_element(row, stride1, head, args.head_dim), stride1, place.length - begin, at);
}

template <int Dim>
__global__ void __launch_bounds__(F32Grad<Dim>::Threads, Dim > 64 ? 2 : 3)
    query_grad_f32_kernel(const __grid_constant__ Attention at)
{
    typedef F32Grad<Dim> Tiles;
    extern __shared__ __align__(128) unsigned char shared[];
    Tiles &tiles = *reinterpret_cast<Tiles *>(shared);
    const int64_t head = blockIdx.x / at.places, kv_head = attention_kv_head(at, head), head_dim = at.args.head_dim;
    const AttentionPlace place = attention_place(at, at.places - 1 - blockIdx.x % at.places, Tiles::Own);
    const int x = threadIdx.x % 16, own = threadIdx.x / 16 * 4;

    if (place.begin >= place.length)
        return;
    const AttentionRange keys =
        attention_keys(at, place.begin, min(place.begin + Tiles::Own, place.length), place.length);
    float sum[4][Dim / 16] = {};

    f32_load_side<Dim, Tiles::Own>(at, tiles.own, true, head, place, place.begin);
    for (int key = keys.begin / Tiles::Other * Tiles::Other; key < keys.end; key += Tiles::Other) {
        f32_load_side<Dim, Tiles::Other>(at, tiles.other, false, kv_head, place, key);
        copies_commit();
        copies_wait<0>();
        __syncthreads(); /* the tile is here */
        f32_weights<Dim, true>(at, place, head, key, tiles);
        f32_spread<Dim, Tiles::Other, 16, Tiles::WeightLine>(tiles.weight[1] + own * Tiles::WeightLine,
                                                             tiles.other[0] + x * 4, sum);
        __syncthreads(); /* all are done with the tile before it is filled again */
    }
    const float scale[4] = {at.args.scale, at.args.scale, at.args.scale, at.args.scale};
    f32_store<Dim, 16>(at,
                       static_cast<float *>(at.dq) +
                           attention_element(place.first_row + place.begin + own, at.dq_stride, head, head_dim),
                       at.dq_stride, place.length - place.begin - own, scale, sum);
}

template <int Dim>
__global__ void __launch_bounds__(F32Grad<Dim>::Threads, Dim > 64 ? 2 : 3)
    key_grad_f32_kernel(const __grid_constant__ Attention at)
{
    typedef F32Grad<Dim> Tiles;
    extern __shared__ __align__(128) unsigned char shared[];
    Tiles &tiles = *reinterpret_cast<Tiles *>(shared);
    const int64_t slot = blockIdx.x / at.places, head_dim = at.args.head_dim;
    const AttentionPlace place = attention_place(at, blockIdx.x % at.places, Tiles::Own);
    const int x = threadIdx.x % 16, own = threadIdx.x / 16 * 4;
    bool loaded = false;

    if (place.begin >= place.length)
        return;
    const AttentionRange queries =
        attention_queries(at, place.begin, min(place.begin + Tiles::Own, place.length), place.length);
    float key_sum[4][Dim / 16] = {}, value_sum[4][Dim / 16] = {};

    for (int head = 0; head < at.args.heads; head++) { /* the slot's, in order */
        if (attention_slot(at, head) != slot)
            continue;
        if (!loaded)
            f32_load_side<Dim, Tiles::Own>(at, tiles.own, false, attention_kv_head(at, head), place, place.begin);
        loaded = true;
        for (int query = queries.begin / Tiles::Other * Tiles::Other; query < queries.end; query += Tiles::Other) {
            f32_load_side<Dim, Tiles::Other>(at, tiles.other, true, head, place, query);
            copies_commit();
            copies_wait<0>();
            __syncthreads(); /* the tile is here */
            f32_weights<Dim, false>(at, place, head, query, tiles);
            f32_spread<Dim, Tiles::Other, 16, Tiles::WeightLine>(tiles.weight[0] + own * Tiles::WeightLine,
                                                                 tiles.other[1] + x * 4, value_sum);
            f32_spread<Dim, Tiles::Other, 16, Tiles::WeightLine>(tiles.weight[1] + own * Tiles::WeightLine,
                                                                 tiles.other[0] + x * 4, key_sum);
            __syncthreads(); /* all are done with the tile before it is filled again */
        }
    }
    const float scale[4] = {at.args.scale, at.args.scale, at.args.scale, at.args.scale},
                one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    const int64_t to = (slot * at.args.rows + place.first_row + place.begin + own) * head_dim;

    f32_store<Dim, 16>(at, at.dk + to, head_dim, place.length - place.begin - own, scale, key_sum);
    f32_store<Dim, 16>(at, at.dv + to, head_dim, place.length - place.begin - own, one, value_sum);
}

template <int Dim, bool Queries> static AttentionKernel grad_kernel()
{
    return {Queries ? query_grad_f32_kernel<Dim> : key_grad_f32_kernel<Dim>, F32Grad<Dim>::Own, F32Grad<Dim>::Threads,
            sizeof(F32Grad<Dim>)};
}

template <bool Queries> static AttentionKernel grad_kernel_of(int64_t head_dim)
{
    return attention_kernel_of(head_dim, [](auto size) { return grad_kernel<decltype(size)::value, Queries>(); });
}

AttentionKernel attention_query_grad_f32(int64_t head_dim)
{
    return grad_kernel_of<true>(head_dim);
}

AttentionKernel attention_key_grad_f32(int64_t head_dim)
{
    return grad_kernel_of<false>(head_dim);
}

} // namespace tpi
