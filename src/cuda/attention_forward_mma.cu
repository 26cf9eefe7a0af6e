/* Attention of 16-bit tensors on tensor cores: running maximum, sum and output of each query over tiles of keys (Dao et
 * al. 2022, "FlashAttention"; Milakov and Gimelshein 2018 for the running sums). A warp has 32 queries, 16 where heads
 * are long: what it reads of keys and values serves them all. A tile of values is on its way while scores are computed,
 * the next tile of keys after that. Probabilities are rounded to the tensors' type for the product with V, and summed
 * unrounded. */
#include "cuda/attention_tile.cuh"

namespace tpi {

template <int Dim> struct ForwardTiles {
    static constexpr int Halves = Dim > 128 ? 1 : 2; /* a warp's queries, 16 each */
    static constexpr int Rows = 16 * Halves, Threads = 128, Queries = Rows * Threads / 32, Keys = Dim > 64 ? 32 : 64,
                         Line = Dim + 8;
    uint16_t query[Queries * Line];
    uint16_t key[2][Keys * Line], value[2][Keys * Line];
};

/* A thread's share of its warp's queries: rows 16 m + lane / 4 + 8 h. */
template <int Dim> struct ForwardRows {
    static constexpr int Halves = ForwardTiles<Dim>::Halves;
    float maximum[Halves][2], sum[Halves][2]; /* the maximum of scores before they are scaled; sums of this thread's
                                               * columns */
    float out[Halves][Dim / 8][4];
};

template <int Dim> struct ForwardScores {
    float of[ForwardTiles<Dim>::Halves][ForwardTiles<Dim>::Keys / 8][4];
};

template <typename T, int Dim>
__device__ __forceinline__ void forward_add_products(const uint16_t *query, const uint16_t *key,
                                                     ForwardScores<Dim> &score)
{
    typedef ForwardTiles<Dim> Tiles;

#pragma unroll
    for (int d = 0; d < Dim; d += 16) {
        uint32_t left[Tiles::Halves][4];

#pragma unroll
        for (int m = 0; m < Tiles::Halves; m++)
            load_left(left[m], query + m * 16 * Tiles::Line + d, Tiles::Line);
#pragma unroll
        for (int n = 0; n < Tiles::Keys / 16; n++) {
            uint32_t right[4];

            load_right(right, key + n * 16 * Tiles::Line + d, Tiles::Line);
#pragma unroll
            for (int m = 0; m < Tiles::Halves; m++) {
                multiply_add<T>(score.of[m][2 * n], left[m], right[0], right[1]);
                multiply_add<T>(score.of[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* Scores of keys that a query doesn't see become -inf. */
template <int Dim>
__device__ __forceinline__ void forward_mask(const Attention &at, int length, int first_query, int first_key,
                                             ForwardScores<Dim> &score)
{
    typedef ForwardTiles<Dim> Tiles;
    const int lane = late(threadIdx.x & 31);

#pragma unroll
    for (int m = 0; m < Tiles::Halves; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int query = first_query + m * 16 + lane / 4 + h * 8;
            const AttentionRange keys = attention_keys(at, query, query + 1, length);
            const int first = first_key + lane % 4 * 2;
            const AttentionRange seen = {keys.begin - first, keys.end - first};

#pragma unroll
            for (int n = 0; n < Tiles::Keys / 8; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &x = score.of[m][n][h * 2 + i];

                    x = is_within(seen, n * 8 + i) ? x : -INFINITY;
                }
            }
        }
    }
}

/* Scores of one tile become probabilities; the running values move on. scale is that of scores in powers of 2, and
 * positive. */
template <int Dim>
__device__ __forceinline__ void forward_soften(float scale, ForwardScores<Dim> &score, ForwardRows<Dim> &rows)
{
    typedef ForwardTiles<Dim> Tiles;
    float rescale[Tiles::Halves][2];
    bool moved = false;

#pragma unroll
    for (int r = 0; r < 2 * Tiles::Halves; r++) {
        const int m = r / 2, h = r % 2;
        float maximum = rows.maximum[m][h];

#pragma unroll
        for (int n = 0; n < Tiles::Keys / 8; n++)
            maximum = fmaxf(maximum, fmaxf(score.of[m][n][h * 2], score.of[m][n][h * 2 + 1]));
        maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, 1));
        maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, 2));
        /* A query that has seen nothing has maximum -inf, for which 0 stands in: -inf - -inf would be NaN. */
        const float base = maximum == -INFINITY ? 0.0f : __fmul_rn(maximum, scale);

        rescale[m][h] = power_of_2(__fsub_rn(__fmul_rn(rows.maximum[m][h], scale), base));
        moved = moved || rescale[m][h] != 1.0f;
        rows.maximum[m][h] = maximum;
        float sum = __fmul_rn(rows.sum[m][h], rescale[m][h]);

#pragma unroll
        for (int n = 0; n < Tiles::Keys / 8; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = score.of[m][n][h * 2 + i];

                x = power_of_2(__fmaf_rn(x, scale, -base));
                sum = __fadd_rn(sum, x);
            }
        }
        rows.sum[m][h] = sum;
    }
    if (!__any_sync(ALL_LANES, moved)) /* mostly: products with 1 would change nothing */
        return;
#pragma unroll
    for (int i = 0; i < Tiles::Halves * Dim / 2; i++) {
        float &x = rows.out[i / (Dim / 2)][i / 4 % (Dim / 8)][i % 4];

        x = __fmul_rn(x, rescale[i / (Dim / 2)][i / 2 % 2]);
    }
}

template <int Dim> __device__ __forceinline__ AttentionBlock forward_block(const Attention &at)
{
    return attention_block(at, at.args.heads, ForwardTiles<Dim>::Queries, true);
}

/* A thread's words in the padding of its block's queries. */
template <int Dim> __device__ __forceinline__ uint32_t *forward_spare(uint16_t *query)
{
    const int word = late(threadIdx.x) * 2 * ForwardTiles<Dim>::Halves;

    return reinterpret_cast<uint32_t *>(query + word / 4 * ForwardTiles<Dim>::Line + Dim) + word % 4;
}

/* Which probabilities are kept, found before scores need the registers. */
template <int Dim>
__device__ __forceinline__ void forward_draw(const Attention &at, int first_query, int first_key, uint32_t *kept)
{
    const AttentionBlock block = forward_block<Dim>(at);
    const int64_t row = block.place.first_row + first_query + (threadIdx.x & 31) / 4;

#pragma unroll 1
    for (int r = 0; r < 2 * ForwardTiles<Dim>::Halves; r++)
        kept[r] = attention_kept_bits<ForwardTiles<Dim>::Keys / 8>(at, row + r * 8, block.head, first_key);
}

template <int Dim> __device__ __forceinline__ void forward_drop(const uint32_t *kept, ForwardScores<Dim> &score)
{
    typedef ForwardTiles<Dim> Tiles;

#pragma unroll
    for (int r = 0; r < 2 * Tiles::Halves; r++) {
        const uint32_t bits = kept[r];

#pragma unroll
        for (int i = 0; i < Tiles::Keys / 4; i++) {
            float &x = score.of[r / 2][i / 2][r % 2 * 2 + i % 2];

            x = bits >> i & 1 ? x : 0.0f;
        }
    }
}

template <typename T, int Dim>
__device__ __forceinline__ void forward_spread(const uint16_t *value, const ForwardScores<Dim> &score,
                                               ForwardRows<Dim> &rows)
{
    typedef ForwardTiles<Dim> Tiles;

#pragma unroll
    for (int k = 0; k < Tiles::Keys / 16; k++) {
        uint32_t left[Tiles::Halves][4];

#pragma unroll
        for (int i = 0; i < 4 * Tiles::Halves; i++) {
            const float *pair = score.of[i / 4][2 * k + i / 2 % 2] + i % 2 * 2;

            left[i / 4][i % 4] = packed_pair<T>(pair[0], pair[1]);
        }
#pragma unroll
        for (int d = 0; d < Dim / 16; d++) {
            uint32_t right[4];

            load_right_transposed(right, value + k * 16 * Tiles::Line + d * 16, Tiles::Line);
#pragma unroll
            for (int m = 0; m < Tiles::Halves; m++) {
                multiply_add<T>(rows.out[m][2 * d], left[m], right[0], right[1]);
                multiply_add<T>(rows.out[m][2 * d + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* out = O / l and lse = m + log l; a query that saw nothing has l = 0 and gets 0 and -inf. */
template <typename T, int Dim>
__device__ __forceinline__ void forward_finish(const Attention &at, const ForwardRows<Dim> &rows)
{
    const tpi_attention_args &args = at.args;
    const AttentionBlock block = forward_block<Dim>(at);
    const int lane = threadIdx.x & 31, first_query = block.place.begin + threadIdx.x / 32 * ForwardTiles<Dim>::Rows;

#pragma unroll
    for (int r = 0; r < 2 * ForwardTiles<Dim>::Halves; r++) {
        const int m = r / 2, h = r % 2, query = first_query + m * 16 + lane / 4 + h * 8;
        const float sum = lanes_sum<4>(rows.sum[m][h]);
        const float factor = sum == 0.0f ? 0.0f : __fdiv_rn(at.dropout.scale, sum);

        if (query >= block.place.length)
            continue;
        const int64_t row = block.place.first_row + query;
        T *out = static_cast<T *>(args.out) + attention_element(row, args.out_stride, block.head, args.head_dim);

#pragma unroll
        for (int n = 0; n < Dim / 8; n++) {
            const int d = n * 8 + lane % 4 * 2;
            const float x = __fmul_rn(rows.out[m][n][h * 2], factor), y = __fmul_rn(rows.out[m][n][h * 2 + 1], factor);

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
            args.lse[block.head * args.rows + row] =
                sum == 0.0f ? -INFINITY
                            : __fmaf_rn(__fmul_rn(rows.maximum[m][h], args.scale * LOG2_E), LN_2, logf(sum));
    }
}

template <typename T, int Dim>
__global__ void __launch_bounds__(ForwardTiles<Dim>::Threads, Dim > 128 ? 1 : 2)
    forward_mma_kernel(const __grid_constant__ Attention at)
{
    typedef ForwardTiles<Dim> Tiles;
    extern __shared__ __align__(128) unsigned char shared[];
    Tiles &tiles = *reinterpret_cast<Tiles *>(shared);
    const tpi_attention_args &args = at.args;
    const AttentionBlock block = forward_block<Dim>(at);
    const AttentionPlace place = block.place;

    if (place.begin >= place.length)
        return;
    const AttentionRange keys =
        attention_keys(at, place.begin, min(place.begin + Tiles::Queries, place.length), place.length);
    const int own = threadIdx.x / 32 * Tiles::Rows, first_query = place.begin + own;
    const int end_query = min(first_query + Tiles::Rows, place.length); /* a warp may have no query at all */
    const AttentionRange none = {0, 0};
    const AttentionRange seen =
        first_query < end_query ? attention_keys(at, first_query, end_query, place.length) : none;
    const AttentionRange common = attention_common_keys(at, first_query, end_query, place.length);
    const int64_t first = place.first_row + place.begin, kv_head = attention_kv_head(at, block.head);
    int key = keys.begin / Tiles::Keys * Tiles::Keys;
    AttentionRows<Tiles::Queries, Dim, Tiles::Threads> query_rows;
    AttentionRows<Tiles::Keys, Dim, Tiles::Threads> key_rows, value_rows;

    attention_begin(query_rows, at,
                    static_cast<const T *>(args.q) + attention_element(first, args.q_stride, block.head, args.head_dim),
                    args.q_stride);
    attention_begin(key_rows, at,
                    static_cast<const T *>(args.k) +
                        attention_element(place.first_row + key, args.k_stride, kv_head, args.head_dim),
                    args.k_stride);
    attention_begin(value_rows, at,
                    static_cast<const T *>(args.v) +
                        attention_element(place.first_row + key, args.v_stride, kv_head, args.head_dim),
                    args.v_stride);
    attention_next(query_rows, at, args.q, args.q_stride, place.length - place.begin, tiles.query);
    attention_next(key_rows, at, args.k, args.k_stride, place.length - key, tiles.key[0]);
    attention_next(value_rows, at, args.v, args.v_stride, place.length - key, tiles.value[0]);
    copies_commit();

    ForwardRows<Dim> rows = {};
    int stage = 0;
#pragma unroll
    for (int r = 0; r < 2 * Tiles::Halves; r++)
        rows.maximum[r / 2][r % 2] = -INFINITY;
#pragma unroll 1
    for (; key < keys.end; key += Tiles::Keys, stage ^= 1) {
        copies_wait<0>();
        __syncthreads(); /* the tile is here, and all are done with the one before */
        if (key + Tiles::Keys < keys.end) {
            attention_next(key_rows, at, args.k, args.k_stride, place.length - key - Tiles::Keys, tiles.key[stage ^ 1]);
            attention_next(value_rows, at, args.v, args.v_stride, place.length - key - Tiles::Keys,
                           tiles.value[stage ^ 1]);
            copies_commit();
        }
        if (!is_touched(seen, key, Tiles::Keys))
            continue;
        ForwardScores<Dim> score = {};

        if (at.dropout.on)
            forward_draw<Dim>(at, first_query, key, forward_spare<Dim>(tiles.query));
        forward_add_products<T, Dim>(tiles.query + own * Tiles::Line, tiles.key[stage], score);
        if (!is_covered(common, key, Tiles::Keys))
            forward_mask<Dim>(at, place.length, first_query, key, score);
        forward_soften<Dim>(args.scale * LOG2_E, score, rows);
        if (at.dropout.on)
            forward_drop<Dim>(forward_spare<Dim>(tiles.query), score);
        forward_spread<T, Dim>(tiles.value[stage], score, rows);
    }
    forward_finish<T, Dim>(at, rows);
}

template <typename T, int Dim> static AttentionKernel forward_kernel()
{
    return {forward_mma_kernel<T, Dim>, ForwardTiles<Dim>::Queries, ForwardTiles<Dim>::Threads,
            sizeof(ForwardTiles<Dim>)};
}

template <typename T> static AttentionKernel forward_of(int64_t head_dim)
{
    return attention_kernel_of(head_dim, [](auto size) { return forward_kernel<T, decltype(size)::value>(); });
}

AttentionKernel attention_forward_mma(tp_dtype dtype, int64_t head_dim)
{
    return dtype == TP_DTYPE_BF16 ? forward_of<__nv_bfloat16>(head_dim) : forward_of<__half>(head_dim);
}

} // namespace tpi
