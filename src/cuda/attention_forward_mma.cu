/* Attention of 16-bit tensors on tensor cores: running maximum, sum and output of each query over tiles of keys (Dao et al. 2022,
 * "FlashAttention"; Milakov and Gimelshein 2018 for the running sums). A warp has 16 queries; tiles of keys come in two stages.
 * Probabilities are rounded to the tensors' type for the product with V, and summed unrounded. */
#include "cuda/attention.cuh"

namespace tpi {

constexpr int FORWARD_QUERIES = 64, FORWARD_THREADS = 128;

template <int Dim> struct ForwardTiles {
    static constexpr int Keys = Dim > 128 ? 16 : 64, Line = Dim + 8;
    uint16_t query[FORWARD_QUERIES * Line];
    uint16_t key[2][Keys * Line], value[2][Keys * Line];
};

/* A thread's share of its warp's queries: rows lane / 4 and lane / 4 + 8. */
template <int Dim> struct ForwardRows {
    float maximum[2], sum[2]; /* the maximum of scores in powers of 2; sums of this thread's columns */
    float out[Dim / 8][4];
};

/* Scores of one tile become probabilities; the running values move on. */
template <int Keys, int Dim>
__device__ __forceinline__ void forward_soften(const Attention &at, const AttentionPlace &place, int first_query,
                                               int first_key, bool masked, float (&score)[Keys / 8][4],
                                               ForwardRows<Dim> &rows)
{
    const int lane = threadIdx.x & 31;
    const float scale = __fmul_rn(at.args.scale, LOG2_E);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = first_query + lane / 4 + h * 8;
        float maximum = rows.maximum[h];

#pragma unroll
        for (int n = 0; n < Keys / 8; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int key = first_key + n * 8 + lane % 4 * 2 + i;
                float &x = score[n][h * 2 + i];

                x = masked && !attention_sees(at, query, key, place.length) ? -INFINITY : __fmul_rn(x, scale);
                maximum = fmaxf(maximum, x);
            }
        }
        maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, 1));
        maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, 2));
        /* A query that has seen nothing has maximum -inf, for which 0 stands in: -inf - -inf would be NaN. */
        const float base = maximum == -INFINITY ? 0.0f : maximum, rescale = exp2f(__fsub_rn(rows.maximum[h], base));
        float sum = __fmul_rn(rows.sum[h], rescale);

#pragma unroll
        for (int n = 0; n < Keys / 8; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = score[n][h * 2 + i];

                x = exp2f(__fsub_rn(x, base));
                sum = __fadd_rn(sum, x);
            }
        }
#pragma unroll
        for (int d = 0; d < Dim / 8; d++) {
            rows.out[d][h * 2] = __fmul_rn(rows.out[d][h * 2], rescale);
            rows.out[d][h * 2 + 1] = __fmul_rn(rows.out[d][h * 2 + 1], rescale);
        }
        rows.sum[h] = sum;
        rows.maximum[h] = maximum;
    }
}

template <int Keys>
__device__ __forceinline__ void forward_drop(const Attention &at, const AttentionPlace &place, int64_t head, int first_query,
                                             int first_key, float (&score)[Keys / 8][4])
{
    const int lane = threadIdx.x & 31;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint64_t mask_row = attention_mask_row(at, place.first_row + first_query + lane / 4 + h * 8, head);

#pragma unroll
        for (int n = 0; n < Keys / 8; n++) {
            const uint2 kept = attention_kept(at, mask_row, first_key + n * 8 + lane % 4 * 2);

            score[n][h * 2] = kept.x ? score[n][h * 2] : 0.0f;
            score[n][h * 2 + 1] = kept.y ? score[n][h * 2 + 1] : 0.0f;
        }
    }
}

template <typename T, int Keys, int Dim>
__device__ __forceinline__ void forward_spread(const uint16_t *value, const float (&score)[Keys / 8][4],
                                               float (&out)[Dim / 8][4])
{
#pragma unroll
    for (int k = 0; k < Keys / 16; k++) {
        const uint32_t left[4] = {
            packed_pair<T>(score[2 * k][0], score[2 * k][1]), packed_pair<T>(score[2 * k][2], score[2 * k][3]),
            packed_pair<T>(score[2 * k + 1][0], score[2 * k + 1][1]), packed_pair<T>(score[2 * k + 1][2], score[2 * k + 1][3])};

#pragma unroll
        for (int d = 0; d < Dim / 16; d++) {
            uint32_t right[4];

            load_right_transposed(right, value + k * 16 * (Dim + 8) + d * 16, Dim + 8);
            multiply_add<T>(out[2 * d], left, right[0], right[1]);
            multiply_add<T>(out[2 * d + 1], left, right[2], right[3]);
        }
    }
}

/* out = O / l and lse = m + log l; a query that saw nothing has l = 0 and gets 0 and -inf. */
template <typename T, int Dim>
__device__ __forceinline__ void forward_finish(const Attention &at, const AttentionPlace &place, int64_t head,
                                               int first_query, const ForwardRows<Dim> &rows)
{
    const tpi_attention_args &args = at.args;
    const int lane = threadIdx.x & 31;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = first_query + lane / 4 + h * 8;
        const float sum = lanes_sum<4>(rows.sum[h]);
        const float factor = sum == 0.0f ? 0.0f : __fdiv_rn(at.dropout.scale, sum);

        if (query >= place.length)
            continue;
        const int64_t row = place.first_row + query;
        T *out = static_cast<T *>(args.out) + attention_element(row, args.out_stride, head, args.head_dim);

#pragma unroll
        for (int n = 0; n < Dim / 8; n++) {
            const int d = n * 8 + lane % 4 * 2;
            const float x = __fmul_rn(rows.out[n][h * 2], factor), y = __fmul_rn(rows.out[n][h * 2 + 1], factor);

            if (at.pairs && d < args.head_dim) {
                *reinterpret_cast<uint32_t *>(out + d) = packed_pair<T>(x, y);
            } else {
                if (d < args.head_dim)
                    out[d] = from_float<T>(x);
                if (d + 1 < args.head_dim)
                    out[d + 1] = from_float<T>(y);
            }
        }
        if (args.lse != nullptr && lane % 4 == 0)
            args.lse[head * args.rows + row] = sum == 0.0f ? -INFINITY : __fmaf_rn(rows.maximum[h], LN_2, logf(sum));
    }
}

template <typename T, int Dim>
__global__ void __launch_bounds__(FORWARD_THREADS, Dim > 128 ? 1 : 2) forward_mma_kernel(const __grid_constant__ Attention at)
{
    typedef ForwardTiles<Dim> Tiles;
    extern __shared__ __align__(128) unsigned char shared[];
    Tiles &tiles = *reinterpret_cast<Tiles *>(shared);
    const tpi_attention_args &args = at.args;
    const int64_t head = blockIdx.x / at.places, kv_head = attention_kv_head(at, head);
    /* The last tiles first: under a causal mask they take longest. */
    const AttentionPlace place = attention_place(at, at.places - 1 - blockIdx.x % at.places, FORWARD_QUERIES);

    if (place.begin >= place.length)
        return;
    const int queries_end = min(place.begin + FORWARD_QUERIES, place.length);
    const AttentionRange keys = attention_keys(at, place.begin, queries_end, place.length);
    const int first_query = place.begin + threadIdx.x / 32 * 16;
    auto load_keys = [&](int stage, int key) {
        const int64_t row = place.first_row + key;
        const int rows = place.length - key;

        attention_load<Tiles::Keys, Dim, FORWARD_THREADS>(
            tiles.key[stage], static_cast<const T *>(args.k) + attention_element(row, args.k_stride, kv_head, args.head_dim),
            args.k_stride, rows, at);
        attention_load<Tiles::Keys, Dim, FORWARD_THREADS>(
            tiles.value[stage], static_cast<const T *>(args.v) + attention_element(row, args.v_stride, kv_head, args.head_dim),
            args.v_stride, rows, at);
        copies_commit();
    };
    attention_load<FORWARD_QUERIES, Dim, FORWARD_THREADS>(
        tiles.query,
        static_cast<const T *>(args.q) + attention_element(place.first_row + place.begin, args.q_stride, head, args.head_dim),
        args.q_stride, place.length - place.begin, at);
    int stage = 0, key = keys.begin / Tiles::Keys * Tiles::Keys;
    load_keys(0, key);

    ForwardRows<Dim> rows = {{-INFINITY, -INFINITY}, {0, 0}, {}};
    for (; key < keys.end; key += Tiles::Keys, stage ^= 1) {
        if (key + Tiles::Keys < keys.end) {
            load_keys(stage ^ 1, key + Tiles::Keys);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads(); /* the tile is here */
        float score[Tiles::Keys / 8][4] = {};
#pragma unroll
        for (int d = 0; d < Dim; d += 16) {
            uint32_t left[4];

            load_left(left, tiles.query + threadIdx.x / 32 * 16 * Tiles::Line + d, Tiles::Line);
#pragma unroll
            for (int n = 0; n < Tiles::Keys / 16; n++) {
                uint32_t right[4];

                load_right(right, tiles.key[stage] + n * 16 * Tiles::Line + d, Tiles::Line);
                multiply_add<T>(score[2 * n], left, right[0], right[1]);
                multiply_add<T>(score[2 * n + 1], left, right[2], right[3]);
            }
        }
        const bool masked = !attention_all_seen(at, {place.begin, place.begin + FORWARD_QUERIES}, {key, key + Tiles::Keys},
                                                place.length);
        forward_soften<Tiles::Keys, Dim>(at, place, first_query, key, masked, score, rows);
        if (at.dropout.on)
            forward_drop<Tiles::Keys>(at, place, head, first_query, key, score);
        forward_spread<T, Tiles::Keys, Dim>(tiles.value[stage], score, rows.out);
        __syncthreads(); /* all are done with the tile before it is filled again */
    }
    forward_finish<T, Dim>(at, place, head, first_query, rows);
}

template <typename T> static AttentionKernel forward_of(int64_t head_dim)
{
    if (head_dim <= 64)
        return {forward_mma_kernel<T, 64>, FORWARD_QUERIES, FORWARD_THREADS, sizeof(ForwardTiles<64>)};
    if (head_dim <= 128)
        return {forward_mma_kernel<T, 128>, FORWARD_QUERIES, FORWARD_THREADS, sizeof(ForwardTiles<128>)};
    return {forward_mma_kernel<T, 256>, FORWARD_QUERIES, FORWARD_THREADS, sizeof(ForwardTiles<256>)};
}

AttentionKernel attention_forward_mma(tp_dtype dtype, int64_t head_dim)
{
    return dtype == TP_DTYPE_BF16 ? forward_of<__nv_bfloat16>(head_dim) : forward_of<__half>(head_dim);
}

} // namespace tpi
