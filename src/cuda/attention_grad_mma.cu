/* The gradient of attention of 16-bit tensors on tensor cores. Probabilities are computed again from the log-sum-exp (Dao et al. 2022):
 * P = exp(scale q k - lse), dV = P^T dO, dP = dO V^T, dS = P (dP - delta), dQ = scale dS K, dK = scale dS^T Q.
 *
 * One kernel by tiles of queries makes dQ, one by tiles of keys dK and dV. In both a warp owns 16 rows of its tile, computes 16x16 scores and dP of
 * them against the other side's rows, and uses what comes out as the left operand of the next product as it lies in registers. */
#include "cuda/attention.cuh"

namespace tpi {

constexpr int GRAD_ROWS = 64; /* a block's own queries or keys */

template <int Dim> struct GradShape {
    static constexpr int Line = Dim + 8;
    static constexpr int Other = Dim > 128 ? 16 : 32; /* rows of the other side at a time */
    static constexpr int KeyParts = Dim > 128 ? 2 : 1; /* warps that share 16 keys, each with a part of the head dimension */
    static constexpr int KeyThreads = 128 * KeyParts;
};

/* own: q and dO, or k and v; other: the other two, in two stages. */
template <int Dim> struct GradTiles {
    uint16_t own[2][GRAD_ROWS * GradShape<Dim>::Line];
    uint16_t other[2][2][GradShape<Dim>::Other * GradShape<Dim>::Line];
};

/* Two products of 16 own rows with 16 others: own[0] other[0]^T and own[1] other[1]^T. */
template <typename T, int Dim>
__device__ __forceinline__ void grad_products(const uint16_t *own0, const uint16_t *own1, const uint16_t *other0,
                                              const uint16_t *other1, float (&product0)[2][4], float (&product1)[2][4])
{
    constexpr int Line = Dim + 8;

#pragma unroll
    for (int i = 0; i < 4; i++)
        product0[0][i] = product0[1][i] = product1[0][i] = product1[1][i] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < Dim; d += 16) {
        uint32_t left[4], right[4];

        load_left(left, own0 + d, Line);
        load_right(right, other0 + d, Line);
        multiply_add<T>(product0[0], left, right[0], right[1]);
        multiply_add<T>(product0[1], left, right[2], right[3]);
        load_left(left, own1 + d, Line);
        load_right(right, other1 + d, Line);
        multiply_add<T>(product1[0], left, right[0], right[1]);
        multiply_add<T>(product1[1], left, right[2], right[3]);
    }
}

/* sum[16 own rows, Width] += weight[16, 16] other[16, Width]. */
template <typename T, int Width, int Line>
__device__ __forceinline__ void grad_add(const float (&weight)[2][4], const uint16_t *other, float (&sum)[Width / 8][4])
{
    const uint32_t left[4] = {packed_pair<T>(weight[0][0], weight[0][1]), packed_pair<T>(weight[0][2], weight[0][3]),
                              packed_pair<T>(weight[1][0], weight[1][1]), packed_pair<T>(weight[1][2], weight[1][3])};

#pragma unroll
    for (int d = 0; d < Width / 16; d++) {
        uint32_t right[4];

        load_right_transposed(right, other + d * 16, Line);
        multiply_add<T>(sum[2 * d], left, right[0], right[1]);
        multiply_add<T>(sum[2 * d + 1], left, right[2], right[3]);
    }
}

/* What is known of one query. */
struct GradQuery {
    float lse, delta; /* lse in powers of 2 */
    uint64_t mask_row;
};

static __device__ __forceinline__ GradQuery grad_query(const Attention &at, const AttentionPlace &place, int64_t head,
                                                       int query)
{
    if (query >= place.length)
        return {0, 0, 0};
    const int64_t row = place.first_row + query, index = head * at.args.rows + row;
    const float lse = at.args.lse[index];

    /* Of a query that saw nothing all probabilities come out 0, whatever its lse. */
    return {lse == -INFINITY ? 0.0f : __fmul_rn(lse, LOG2_E), at.delta[index], attention_mask_row(at, row, head)};
}

/* Score and dP become the probability that was used and dS. Of a dropped one both that probability and what comes back through it are 0. */
static __device__ __forceinline__ void grad_soften(const Attention &at, const GradQuery &query, bool seen, bool kept,
                                                   float &score, float &gradient)
{
    const float exponent = __fmaf_rn(score, __fmul_rn(at.args.scale, LOG2_E), -query.lse);
    const float probability = seen ? exp2f(exponent) : 0.0f;
    const float back = kept ? __fmul_rn(gradient, at.dropout.scale) : 0.0f;

    score = kept ? __fmul_rn(probability, at.dropout.scale) : 0.0f;
    gradient = seen ? __fmul_rn(probability, __fsub_rn(back, query.delta)) : 0.0f;
}

/* ---- dQ ---- */

template <typename T, int Dim>
__device__ __forceinline__ void grad_store_query(const Attention &at, const AttentionPlace &place, int64_t head, int query,
                                                 const float (&sum)[Dim / 8][4])
{
    const int lane = threadIdx.x & 31;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int q = query + lane / 4 + h * 8;

        if (q >= place.length)
            continue;
        T *to = static_cast<T *>(at.dq) + attention_element(place.first_row + q, at.dq_stride, head, at.args.head_dim);
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

template <typename T, int Dim>
__global__ void __launch_bounds__(128, Dim > 128 ? 1 : 2) query_grad_mma_kernel(const __grid_constant__ Attention at)
{
    typedef GradShape<Dim> Shape;
    extern __shared__ __align__(128) unsigned char shared[];
    GradTiles<Dim> &tiles = *reinterpret_cast<GradTiles<Dim> *>(shared);
    const tpi_attention_args &args = at.args;
    const int64_t head = blockIdx.x / at.places, kv_head = attention_kv_head(at, head);
    const AttentionPlace place = attention_place(at, at.places - 1 - blockIdx.x % at.places, GRAD_ROWS);
    const int lane = threadIdx.x & 31, own_row = threadIdx.x / 32 * 16;

    if (place.begin >= place.length)
        return;
    const AttentionRange keys =
        attention_keys(at, place.begin, min(place.begin + GRAD_ROWS, place.length), place.length);
    const int64_t first = place.first_row + place.begin;
    auto load_keys = [&](int stage, int key) {
        const int64_t row = place.first_row + key;

        attention_load<Shape::Other, Dim, 128>(
            tiles.other[stage][0],
            static_cast<const T *>(args.k) + attention_element(row, args.k_stride, kv_head, args.head_dim),
            args.k_stride, place.length - key, at);
        attention_load<Shape::Other, Dim, 128>(
            tiles.other[stage][1],
            static_cast<const T *>(args.v) + attention_element(row, args.v_stride, kv_head, args.head_dim),
            args.v_stride, place.length - key, at);
        copies_commit();
    };
    attention_load<GRAD_ROWS, Dim, 128>(
        tiles.own[0], static_cast<const T *>(args.q) + attention_element(first, args.q_stride, head, args.head_dim),
        args.q_stride, place.length - place.begin, at);
    attention_load<GRAD_ROWS, Dim, 128>(
        tiles.own[1], static_cast<const T *>(at.dout) + attention_element(first, at.dout_stride, head, args.head_dim),
        at.dout_stride, place.length - place.begin, at);
    int stage = 0, key = keys.begin / Shape::Other * Shape::Other;
    load_keys(0, key);

    float sum[Dim / 8][4] = {};
    const GradQuery query[2] = {grad_query(at, place, head, place.begin + own_row + lane / 4),
                                grad_query(at, place, head, place.begin + own_row + lane / 4 + 8)};
    for (; key < keys.end; key += Shape::Other, stage ^= 1) {
        if (key + Shape::Other < keys.end) {
            load_keys(stage ^ 1, key + Shape::Other);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads(); /* the tile is here */
#pragma unroll 1
        for (int c = 0; c < Shape::Other; c += 16) {
            const uint16_t *other = tiles.other[stage][0] + c * Shape::Line;
            float score[2][4], gradient[2][4];

            grad_products<T, Dim>(tiles.own[0] + own_row * Shape::Line, tiles.own[1] + own_row * Shape::Line, other,
                                  tiles.other[stage][1] + c * Shape::Line, score, gradient);
#pragma unroll
            for (int i = 0; i < 4; i++) { /* a pair of neighbouring keys of one query */
                const int n = i / 2, h = i % 2, k = key + c + n * 8 + lane % 4 * 2;
                const int q = place.begin + own_row + lane / 4 + h * 8;
                const uint2 kept = at.dropout.on ? attention_kept(at, query[h].mask_row, k) : make_uint2(1, 1);

                grad_soften(at, query[h], attention_sees(at, q, k, place.length), kept.x, score[n][h * 2],
                            gradient[n][h * 2]);
                grad_soften(at, query[h], attention_sees(at, q, k + 1, place.length), kept.y, score[n][h * 2 + 1],
                            gradient[n][h * 2 + 1]);
            }
            grad_add<T, Dim, Shape::Line>(gradient, other, sum);
        }
        __syncthreads(); /* all are done with the tile before it is filled again */
    }
    grad_store_query<T, Dim>(at, place, head, place.begin + own_row, sum);
}

/* ---- dK and dV ---- */

/* Part `part` of the head dimension of 16 keys. */
template <int Width>
__device__ __forceinline__ void grad_store_keys(const Attention &at, const AttentionPlace &place, int64_t slot, int key,
                                                int first_d, float scale, const float (&sum)[Width / 8][4], float *out)
{
    const int lane = threadIdx.x & 31;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int k = key + lane / 4 + h * 8;

        if (k >= place.length)
            continue;
        float *to = out + (slot * at.args.rows + place.first_row + k) * at.args.head_dim;
#pragma unroll
        for (int n = 0; n < Width / 8; n++) {
            const int d = first_d + n * 8 + lane % 4 * 2;

            if (d < at.args.head_dim)
                to[d] = __fmul_rn(sum[n][h * 2], scale);
            if (d + 1 < at.args.head_dim)
                to[d + 1] = __fmul_rn(sum[n][h * 2 + 1], scale);
        }
    }
}

/* The slot's heads, which are neighbours. */
static __device__ __forceinline__ AttentionRange grad_heads(const Attention &at, int64_t slot)
{
    int begin = 0, end;

    while (begin < at.args.heads && attention_slot(at, begin) < slot)
        begin++;
    for (end = begin; end < at.args.heads && attention_slot(at, end) == slot;)
        end++;
    return {begin, end};
}

template <typename T, int Dim>
__global__ void __launch_bounds__(GradShape<Dim>::KeyThreads, Dim > 128 ? 1 : 2)
    key_grad_mma_kernel(const __grid_constant__ Attention at)
{
    typedef GradShape<Dim> Shape;
    constexpr int Width = Dim / Shape::KeyParts;
    extern __shared__ __align__(128) unsigned char shared[];
    GradTiles<Dim> &tiles = *reinterpret_cast<GradTiles<Dim> *>(shared);
    const tpi_attention_args &args = at.args;
    const int64_t slot = blockIdx.x / at.places;
    const AttentionPlace place = attention_place(at, blockIdx.x % at.places, GRAD_ROWS);
    const int lane = threadIdx.x & 31, own_row = threadIdx.x / 32 % 4 * 16, first_d = threadIdx.x / 128 * Width;

    if (place.begin >= place.length)
        return;
    const AttentionRange heads = grad_heads(at, slot),
                         queries = attention_queries(at, place.begin, min(place.begin + GRAD_ROWS, place.length), place.length);
    const int first_query = queries.begin / Shape::Other * Shape::Other;
    const int tiles_a_head = queries.end > first_query ? (queries.end - first_query + Shape::Other - 1) / Shape::Other : 0;
    const int64_t kv_head = heads.begin < heads.end ? attention_kv_head(at, heads.begin) : 0;
    const int64_t first = place.first_row + place.begin;
    int load_head = heads.begin, load_query = first_query;
    auto load_queries = [&](int stage) {
        const int64_t row = place.first_row + load_query;

        attention_load<Shape::Other, Dim, Shape::KeyThreads>(
            tiles.other[stage][0],
            static_cast<const T *>(args.q) + attention_element(row, args.q_stride, load_head, args.head_dim), args.q_stride,
            place.length - load_query, at);
        attention_load<Shape::Other, Dim, Shape::KeyThreads>(
            tiles.other[stage][1],
            static_cast<const T *>(at.dout) + attention_element(row, at.dout_stride, load_head, args.head_dim),
            at.dout_stride, place.length - load_query, at);
        copies_commit();
        load_query += Shape::Other;
        if (load_query >= queries.end) {
            load_query = first_query;
            load_head++;
        }
    };
    const int steps = tiles_a_head * (heads.end - heads.begin);
    float key_sum[Width / 8][4] = {}, value_sum[Width / 8][4] = {};
    if (steps > 0) {
        attention_load<GRAD_ROWS, Dim, Shape::KeyThreads>(
            tiles.own[0], static_cast<const T *>(args.k) + attention_element(first, args.k_stride, kv_head, args.head_dim),
            args.k_stride, place.length - place.begin, at);
        attention_load<GRAD_ROWS, Dim, Shape::KeyThreads>(
            tiles.own[1], static_cast<const T *>(args.v) + attention_element(first, args.v_stride, kv_head, args.head_dim),
            args.v_stride, place.length - place.begin, at);
        load_queries(0);
    }
    int head = heads.begin, query = first_query;
    for (int step = 0; step < steps; step++) {
        const int stage = step & 1;

        if (step + 1 < steps) {
            load_queries(stage ^ 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads(); /* the tile is here */
#pragma unroll 1
        for (int c = 0; c < Shape::Other; c += 16) {
            const uint16_t *other0 = tiles.other[stage][0] + c * Shape::Line;
            const uint16_t *other1 = tiles.other[stage][1] + c * Shape::Line;
            float score[2][4], gradient[2][4];

            grad_products<T, Dim>(tiles.own[0] + own_row * Shape::Line, tiles.own[1] + own_row * Shape::Line, other0, other1,
                                  score, gradient);
#pragma unroll
            for (int i = 0; i < 4; i++) { /* one query, two keys */
                const int n = i / 2, side = i % 2, q = query + c + n * 8 + lane % 4 * 2 + side;
                const GradQuery known = grad_query(at, place, head, q);

#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int k = place.begin + own_row + lane / 4 + h * 8;
                    bool kept = true;

                    if (at.dropout.on)
                        kept = is_kept(at.dropout, known.mask_row + static_cast<uint64_t>(k));
                    grad_soften(at, known, attention_sees(at, q, k, place.length), kept, score[n][h * 2 + side],
                                gradient[n][h * 2 + side]);
                }
            }
            grad_add<T, Width, Shape::Line>(score, other1 + first_d, value_sum);
            grad_add<T, Width, Shape::Line>(gradient, other0 + first_d, key_sum);
        }
        query += Shape::Other;
        if (query >= queries.end) {
            query = first_query;
            head++;
        }
        __syncthreads(); /* all are done with the tile before it is filled again */
    }
    grad_store_keys<Width>(at, place, slot, place.begin + own_row, first_d, args.scale, key_sum, at.dk);
    grad_store_keys<Width>(at, place, slot, place.begin + own_row, first_d, 1.0f, value_sum, at.dv);
}

/* ---- which ---- */

template <typename T, int Dim> static AttentionKernel query_kernel()
{
    return {query_grad_mma_kernel<T, Dim>, GRAD_ROWS, 128, sizeof(GradTiles<Dim>)};
}

template <typename T, int Dim> static AttentionKernel key_kernel()
{
    return {key_grad_mma_kernel<T, Dim>, GRAD_ROWS, GradShape<Dim>::KeyThreads, sizeof(GradTiles<Dim>)};
}

template <typename T> static AttentionKernel query_kernel_of(int64_t head_dim)
{
    return head_dim <= 64 ? query_kernel<T, 64>() : head_dim <= 128 ? query_kernel<T, 128>() : query_kernel<T, 256>();
}

template <typename T> static AttentionKernel key_kernel_of(int64_t head_dim)
{
    return head_dim <= 64 ? key_kernel<T, 64>() : head_dim <= 128 ? key_kernel<T, 128>() : key_kernel<T, 256>();
}

AttentionKernel attention_query_grad_mma(tp_dtype dtype, int64_t head_dim)
{
    return dtype == TP_DTYPE_BF16 ? query_kernel_of<__nv_bfloat16>(head_dim) : query_kernel_of<__half>(head_dim);
}

AttentionKernel attention_key_grad_mma(tp_dtype dtype, int64_t head_dim)
{
    return dtype == TP_DTYPE_BF16 ? key_kernel_of<__nv_bfloat16>(head_dim) : key_kernel_of<__half>(head_dim);
}

} // namespace tpi
