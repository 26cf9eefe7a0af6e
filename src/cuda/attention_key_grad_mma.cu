/* dK and dV of attention of 16-bit tensors, on tensor cores: attention_grad_mma.cuh. A block adds over its slot's heads
 * in order, and in each over tiles of queries; what is known of a query travels in the padding of its tile's lines. */
#include "cuda/attention_grad_mma.cuh"

namespace tpi {

template <int Dim> struct KeyGrad {
    static constexpr int Parts = GradShape<Dim>::Kept ? 1 : 2; /* warps that share 16 keys, each with a part of the head
                                                                * dimension */
    static constexpr int Width = Dim / Parts, Threads = GradShape<Dim>::Warps * Parts * 32;
    static constexpr int Count = Dim > 64 ? 2 : 4; /* times 8 queries at a time */
};

template <int Dim> __device__ __forceinline__ AttentionBlock key_grad_block(const Attention &at)
{
    return attention_block(at, at.slots, GradShape<Dim>::Own, false);
}

/* The slot's heads, which are neighbours. */
static __device__ __forceinline__ AttentionRange key_grad_heads(const Attention &at, int slot)
{
    int begin = 0, end;

    while (begin < at.args.heads && attention_slot(at, begin) < slot)
        begin++;
    for (end = begin; end < at.args.heads && attention_slot(at, end) == slot;)
        end++;
    return {begin, end};
}

/* Tiles of queries on their way: those of a head, then those of the next. */
template <int Dim> struct KeyGradQueries {
    AttentionRows<GradShape<Dim>::Other, Dim, KeyGrad<Dim>::Threads> query, dout;
};

/* What a block knows, in the padding of two lines, where it takes no registers: its place, and the queries and heads
 * that matter. */
template <int Dim> __device__ __forceinline__ AttentionPlace &key_grad_place(GradTiles<Dim> &tiles)
{
    return *reinterpret_cast<AttentionPlace *>(tiles.other(0, 1) + Dim);
}

struct KeyGradRange {
    AttentionRange queries;
    int heads_end;
};

template <int Dim> __device__ __forceinline__ KeyGradRange &key_grad_range(GradTiles<Dim> &tiles)
{
    return *reinterpret_cast<KeyGradRange *>(tiles.other(0, 1) + GradShape<Dim>::Line + Dim);
}

/* The warp's first key. */
template <int Dim> __device__ __forceinline__ int key_grad_first(GradTiles<Dim> &tiles)
{
    return key_grad_place(tiles).begin + late(threadIdx.x) / 32 % GradShape<Dim>::Warps * 16;
}

/* The next tile is the first of a head's, from `row` on. */
template <typename T, int Dim>
__device__ __forceinline__ void key_grad_begin(KeyGradQueries<Dim> &queries, const Attention &at, int head, int64_t row)
{
    const tpi_attention_args &args = at.args;

    attention_begin(queries.query, at,
                    static_cast<const T *>(args.q) + attention_element(row, args.q_stride, head, args.head_dim),
                    args.q_stride);
    attention_begin(queries.dout, at,
                    static_cast<const T *>(at.dout) + attention_element(row, at.dout_stride, head, args.head_dim),
                    at.dout_stride);
}

/* The same of the next head. rows_back: how many rows of this one there were. */
template <int Dim>
__device__ __forceinline__ void key_grad_next_head(KeyGradQueries<Dim> &queries, const Attention &at, int rows_back)
{
    attention_next_head(queries.query, at, at.args.q_stride, rows_back);
    attention_next_head(queries.dout, at, at.dout_stride, rows_back);
}

/* Begins to copy the next tile, which is the head's from `query` on. */
template <int Dim>
__device__ __forceinline__ void key_grad_next(KeyGradQueries<Dim> &queries, const Attention &at, int head, int query,
                                              GradTiles<Dim> &tiles, int stage)
{
    typedef GradShape<Dim> Shape;
    const int line = late(threadIdx.x), count = key_grad_place(tiles).length - query;

    attention_next(queries.query, at, at.args.q, at.args.q_stride, count, tiles.other(stage, 0));
    attention_next(queries.dout, at, at.dout, at.dout_stride, count, tiles.other(stage, 1));
    if (line < Shape::Other) {
        const int64_t row = key_grad_place(tiles).first_row + query + line;

        copy_async_8(tiles.other(stage, 0) + line * Shape::Line + Dim,
                     at.known + (line < count ? head * at.args.rows + row : 0), line < count);
    }
    copies_commit();
}

/* What own key lane / 4 + 8 h is seen by. */
template <int Count>
__device__ __forceinline__ void key_grad_mask(const Attention &at, int length, int first_key, int first_query,
                                              GradScores<Count> &product)
{
    const int lane = late(threadIdx.x & 31), key = first_key + lane / 4;
    const AttentionRange seen[2] = {attention_queries(at, key, key + 1, length),
                                    attention_queries(at, key + 8, key + 9, length)};

    grad_mask<Count>(seen, first_query + lane % 4 * 2, product);
}

/* Which of a thread's 8 probabilities are kept: bit 16 h + 8 n + 4 i is that of key lane / 4 + 8 h and query 8 n + 2
 * (lane mod 4) + i. Four keys need the same random numbers, and four lanes share the work. */
template <int Dim>
__device__ __forceinline__ uint32_t key_grad_kept_bits(const Attention &at, int head, int first_key, int first_query)
{
    const AttentionBlock block = key_grad_block<Dim>(at);
    const int lane = late(threadIdx.x & 31), part = lane / 4 % 4, key = first_key + part / 2 * 8 + lane / 16 * 4;
    const uint64_t mask_row =
        attention_mask_row(at, block.place.first_row + first_query + part % 2 * 8 + lane % 4 * 2, head);
    uint64_t element = mask_row + static_cast<uint64_t>(key);
    uint32_t bits = 0;

#pragma unroll 1
    for (int i = 0; i < 2; i++, element += static_cast<uint64_t>(at.args.total_heads) << 24) { /* the next query */
        const uint4 word = random_block(late(at.dropout.key), element / 4);
        const uint32_t threshold = at.dropout.threshold;

        bits = bits >> 4 | ((word.x >= threshold) | (word.y >= threshold) << 1 | (word.z >= threshold) << 2 |
                            (word.w >= threshold) << 3)
                               << 4;
    }
    bits <<= 8 * part;
    bits |= __shfl_xor_sync(ALL_LANES, bits, 4);
    bits |= __shfl_xor_sync(ALL_LANES, bits, 8);
    return bits >> part;
}

template <int Count>
__device__ __forceinline__ void key_grad_drop(const Attention &at, const uint32_t (&kept)[Count / 2],
                                              float (&x)[Count][4])
{
#pragma unroll
    for (int i = 0; i < 4 * Count; i++) {
        float &value = x[i / 8 * 2 + i / 2 % 2][i / 4 % 2 * 2 + i % 2];

        value = kept[i / 8] >> 4 * (i % 8) & 1 ? __fmul_rn(value, at.dropout.scale) : 0.0f;
    }
}

/* Of the tile of queries from `query` on: bit i is whether the warp's keys have to do with its 8 Count queries number
 * i, bit 16 + i whether not each of these sees each key. */
template <int Dim>
__device__ __forceinline__ uint32_t key_grad_steps(const Attention &at, int length, int first_key, int query)
{
    constexpr int Step = 8 * KeyGrad<Dim>::Count;
    const int end_key = min(first_key + 16, length); /* a warp may have no key at all */
    const AttentionRange seen = attention_queries(at, first_key, end_key, length),
                         common = attention_common_queries(at, first_key, end_key, length);
    uint32_t steps = 0;

#pragma unroll
    for (int i = 0; i < GradShape<Dim>::Other / Step; i++) {
        steps |= static_cast<uint32_t>(first_key < end_key && is_touched(seen, query + i * Step, Step)) << i;
        steps |= static_cast<uint32_t>(!is_covered(common, query + i * Step, Step)) << 16 + i;
    }
    return steps;
}

template <typename T, int Dim> struct KeyGradSums {
    float key[KeyGrad<Dim>::Width / 8][4], value[KeyGrad<Dim>::Width / 8][4];
};

/* What 16 keys and 8 Count queries add to dK and dV. queries, douts: the first one's lines. */
template <typename T, int Dim>
__device__ __forceinline__ void key_grad_add(const Attention &at, const GradOwn<Dim> &own, const uint16_t *queries,
                                             const uint16_t *douts, int head, int query, bool masked,
                                             GradTiles<Dim> &tiles, KeyGradSums<T, Dim> &sum)
{
    typedef GradShape<Dim> Shape;
    constexpr int Width = KeyGrad<Dim>::Width, Count = KeyGrad<Dim>::Count;
    const int lane = threadIdx.x & 31, first_d = static_cast<int>(threadIdx.x) / (Shape::Warps * 32) * Width;
    uint32_t kept[Count / 2] = {};
    GradScores<Count> product;

    if (at.dropout.on) {
#pragma unroll
        for (int n = 0; n < Count / 2; n++)
            kept[n] = key_grad_kept_bits<Dim>(at, head, key_grad_first(tiles), query + n * 16);
    }
    grad_products<T, Dim>(own, queries, douts, product);
    if (masked)
        key_grad_mask(at, key_grad_place(tiles).length, key_grad_first(tiles), query, product);
    if (at.dropout.on)
        key_grad_drop<Count>(at, kept, product.gradient);
#pragma unroll
    for (int i = 0; i < 2 * Count; i++) {
        const int line = i / 2 * 8 + lane % 4 * 2 + i % 2;
        const float2 known = *reinterpret_cast<const float2 *>(queries + line * Shape::Line + Dim);

#pragma unroll
        for (int h = 0; h < 2; h++)
            grad_soften(at.args.scale * LOG2_E, known, product.score[i / 2][h * 2 + i % 2],
                        product.gradient[i / 2][h * 2 + i % 2]);
    }
    if (at.dropout.on)
        key_grad_drop<Count>(at, kept, product.score);
    grad_add<T, Width, Shape::Line>(product.score, douts + first_d, sum.value);
    grad_add<T, Width, Shape::Line>(product.gradient, queries + first_d, sum.key);
}

/* A warp's keys, a part of the head dimension. */
template <int Dim>
__device__ __forceinline__ void key_grad_store(const Attention &at, float scale,
                                               const float (&sum)[KeyGrad<Dim>::Width / 8][4], float *out)
{
    typedef GradShape<Dim> Shape;
    const AttentionBlock block = key_grad_block<Dim>(at);
    const int lane = threadIdx.x & 31, own_row = threadIdx.x / 32 % Shape::Warps * 16;
    const int first_d = static_cast<int>(threadIdx.x) / (Shape::Warps * 32) * KeyGrad<Dim>::Width;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = block.place.begin + own_row + lane / 4 + h * 8;

        if (key >= block.place.length)
            continue;
        float *to = out + (block.head * at.args.rows + block.place.first_row + key) * at.args.head_dim;
#pragma unroll
        for (int n = 0; n < KeyGrad<Dim>::Width / 8; n++) {
            const int d = first_d + n * 8 + lane % 4 * 2;

            if (d < at.args.head_dim)
                to[d] = __fmul_rn(sum[n][h * 2], scale);
            if (d + 1 < at.args.head_dim)
                to[d + 1] = __fmul_rn(sum[n][h * 2 + 1], scale);
        }
    }
}

template <typename T, int Dim>
__global__ void __launch_bounds__(KeyGrad<Dim>::Threads, 1)
    key_grad_mma_kernel(const __grid_constant__ Attention at)
{
    typedef GradShape<Dim> Shape;
    constexpr int Step = 8 * KeyGrad<Dim>::Count;
    extern __shared__ __align__(128) unsigned char shared[];
    GradTiles<Dim> &tiles = *reinterpret_cast<GradTiles<Dim> *>(shared);
    const tpi_attention_args &args = at.args;
    const AttentionBlock block = key_grad_block<Dim>(at);
    const AttentionPlace place = block.place;

    if (place.begin >= place.length)
        return;
    const AttentionRange heads = key_grad_heads(at, block.head);
    AttentionRange range =
        attention_queries(at, place.begin, min(place.begin + Shape::Own, place.length), place.length);
    KeyGradSums<T, Dim> sum = {};

    range.begin = range.begin / Shape::Other * Shape::Other;
    if (heads.begin < heads.end && range.begin < range.end) {
        const int own_row = threadIdx.x / 32 % Shape::Warps * 16;
        const int64_t kv_head = attention_kv_head(at, heads.begin), first = place.first_row + place.begin;
        AttentionRows<Shape::Own, Dim, KeyGrad<Dim>::Threads> own_rows;
        KeyGradQueries<Dim> queries;
        GradOwn<Dim> own;
        int stage = 0;

        attention_begin(own_rows, at,
                        static_cast<const T *>(args.k) +
                            attention_element(first, args.k_stride, kv_head, args.head_dim),
                        args.k_stride);
        attention_next(own_rows, at, args.k, args.k_stride, place.length - place.begin, tiles.own(0));
        attention_begin(own_rows, at,
                        static_cast<const T *>(args.v) +
                            attention_element(first, args.v_stride, kv_head, args.head_dim),
                        args.v_stride);
        attention_next(own_rows, at, args.v, args.v_stride, place.length - place.begin, tiles.own(1));
        copies_commit();
        if (threadIdx.x == 0)
            key_grad_place(tiles) = place, key_grad_range(tiles) = {range, heads.end};
        if (Shape::Kept)
            copies_wait<0>();
        __syncthreads(); /* the block's own rows are here, or looked at together with the first tile */
        grad_take<Dim>(own, tiles.own(0) + own_row * Shape::Line, tiles.own(1) + own_row * Shape::Line);
        if (Shape::Kept)
            __syncthreads(); /* and taken by all, before others come to their place */
        key_grad_begin<T, Dim>(queries, at, heads.begin, place.first_row + range.begin);
        key_grad_next<Dim>(queries, at, heads.begin, range.begin, tiles, 0);
#pragma unroll 1
        for (int head = heads.begin, query = range.begin; head < key_grad_range(tiles).heads_end; stage ^= 1) {
            const bool last = query + Shape::Other >= key_grad_range(tiles).queries.end; /* of the head */
            const int next = last ? key_grad_range(tiles).queries.begin : query + Shape::Other;
            const uint32_t steps = key_grad_steps<Dim>(at, key_grad_place(tiles).length, key_grad_first(tiles), query);

            copies_wait<0>();
            __syncthreads(); /* the tile is here, and all are done with the one before */
            if (last)
                key_grad_next_head<Dim>(queries, at, query + Shape::Other - next);
            if (head + last < key_grad_range(tiles).heads_end)
                key_grad_next<Dim>(queries, at, head + last, next, tiles, stage ^ 1);
#pragma unroll 1
            for (int c = 0; c < Shape::Other; c += Step)
                if (steps >> c / Step & 1)
                    key_grad_add<T, Dim>(at, own, tiles.other(stage, 0) + c * Shape::Line,
                                         tiles.other(stage, 1) + c * Shape::Line, head, query + c,
                                         steps >> 16 + c / Step & 1, tiles, sum);
            query += Shape::Other; /* as above, which needs no registers meanwhile */
            if (query >= key_grad_range(tiles).queries.end) {
                query = key_grad_range(tiles).queries.begin;
                head++;
            }
        }
    }
    key_grad_store<Dim>(at, args.scale, sum.key, at.dk);
    key_grad_store<Dim>(at, 1.0f, sum.value, at.dv);
}

template <typename T, int Dim> static AttentionKernel key_grad_kernel()
{
    return {key_grad_mma_kernel<T, Dim>, GradShape<Dim>::Own, KeyGrad<Dim>::Threads, sizeof(GradTiles<Dim>)};
}

template <typename T> static AttentionKernel key_grad_of(int64_t head_dim)
{
    return attention_kernel_of(head_dim, [](auto size) { return key_grad_kernel<T, decltype(size)::value>(); });
}

AttentionKernel attention_key_grad_mma(tp_dtype dtype, int64_t head_dim)
{
    return dtype == TP_DTYPE_BF16 ? key_grad_of<__nv_bfloat16>(head_dim) : key_grad_of<__half>(head_dim);
}

} // namespace tpi
