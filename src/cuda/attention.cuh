/* What all attention kernels share: where a block of threads works, and what a query sees.
 *
 * A query's result is made of its own row and of tiles of keys counted from its sequence's first row; a key's gradient
 * of its own row, of the slot's heads in order, and of tiles of queries counted likewise. Nothing else decides bits:
 * not the heads that a rank holds, not other sequences, not the number of blocks. No atomic additions. */
#ifndef TPI_CUDA_ATTENTION_CUH
#define TPI_CUDA_ATTENTION_CUH

#include "cuda/lane.cuh"
#include "cuda/mma.cuh"
#include "cuda/random.cuh"
#include "cuda/vec.cuh"

#include <type_traits>

namespace tpi {

/* Up to this many sequences and heads travel as kernel arguments. */
constexpr int ATTENTION_SEQUENCES = 64;
constexpr int ATTENTION_HEADS = 128;

/* What kernels get. */
struct Attention {
    tpi_attention_args args; /* pointers to host memory in it are not used */
    const int64_t *offsets;  /* device memory, or NULL: own_offsets */
    const int32_t *kv_of_head, *slot_of_head;
    bool packed; /* there are offsets; else all sequences have one length */
    int64_t own_offsets[ATTENTION_SEQUENCES + 1];
    int32_t own_kv[ATTENTION_HEADS], own_slot[ATTENTION_HEADS];
    int64_t sequences, length; /* length of each where not packed */
    int64_t places;            /* of tiles: see attention_place */
    Dropout dropout;           /* scale: what kept probabilities are multiplied by */
    bool vector;               /* rows can be read 16 bytes at a time */
    bool pairs;                /* and written two elements at a time */
    /* The gradient. */
    const void *dout;
    int64_t dout_stride;
    void *dq;
    int64_t dq_stride, slots;
    float *dk, *dv;
    float2 *known; /* [heads, rows]: the log-sum-exp in powers of 2, 0 for -inf; sum of dout * out over each row of a
                    * head (delta) */
};

/* One kernel and how to launch it. */
struct AttentionKernel {
    void (*function)(Attention);
    int tile; /* rows a block */
    int threads;
    size_t shared_bytes;
};

/* Kernels are made for three sizes of a head, of which one takes the smallest that holds it. `make` gives the kernel of
 * a size, which it gets as a type. */
template <typename Make> AttentionKernel attention_kernel_of(int64_t head_dim, Make make)
{
    return head_dim <= 64    ? make(std::integral_constant<int, 64>())
           : head_dim <= 128 ? make(std::integral_constant<int, 128>())
                             : make(std::integral_constant<int, 256>());
}

AttentionKernel attention_forward_mma(tp_dtype dtype, int64_t head_dim);
AttentionKernel attention_query_grad_mma(tp_dtype dtype, int64_t head_dim);
AttentionKernel attention_key_grad_mma(tp_dtype dtype, int64_t head_dim);
AttentionKernel attention_forward_f32(int64_t head_dim);
AttentionKernel attention_query_grad_f32(int64_t head_dim);
AttentionKernel attention_key_grad_f32(int64_t head_dim);

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.69314718055994531f;

#ifdef __CUDACC__

/* ---- places ---- */

static __device__ __forceinline__ int64_t attention_offset(const Attention &at, int64_t sequence)
{
    if (!at.packed)
        return sequence * at.length;
    return at.offsets != nullptr ? at.offsets[sequence] : at.own_offsets[sequence];
}

static __device__ __forceinline__ int attention_kv_head(const Attention &at, int64_t head)
{
    return at.kv_of_head != nullptr ? at.kv_of_head[head] : at.own_kv[head];
}

static __device__ __forceinline__ int attention_slot(const Attention &at, int64_t head)
{
    return at.slot_of_head != nullptr ? at.slot_of_head[head] : at.own_slot[head];
}

/* A tile of one sequence. */
struct AttentionPlace {
    int64_t first_row; /* of the sequence */
    int length;        /* of the sequence */
    int begin;         /* of the tile, in the sequence; length or more: there is no such tile */
};

/* Sequence s has the places from offset[s] / tile + s on, which are enough: so no table is needed, and at most one
 * place a sequence stays empty. */
static __device__ __forceinline__ AttentionPlace attention_place(const Attention &at, int64_t place, int tile)
{
    int64_t low = 0, high = at.sequences - 1;

    while (low < high) { /* the last sequence that begins at this place or before */
        int64_t middle = low + (high - low + 1) / 2;

        if (attention_offset(at, middle) / tile + middle <= place)
            low = middle;
        else
            high = middle - 1;
    }
    const int64_t first = attention_offset(at, low);

    return {first, static_cast<int>(attention_offset(at, low + 1) - first),
            static_cast<int>(place - first / tile - low) * tile};
}

/* ---- masks ---- */

struct AttentionRange {
    int begin, end;
};

static __device__ __forceinline__ AttentionRange attention_clip(int64_t begin, int64_t end, int length)
{
    return {begin > 0 ? static_cast<int>(begin) : 0, end < length ? static_cast<int>(end) : length};
}

/* Keys that at least one of the queries [begin, end) sees. */
static __device__ __forceinline__ AttentionRange attention_keys(const Attention &at, int begin, int end, int length)
{
    const int64_t window = at.args.window > 0 ? at.args.window : length, ahead = at.args.causal ? 1 : window;

    return attention_clip(begin - window + 1, end - 1 + ahead, length);
}

/* Queries that see at least one of the keys [begin, end). */
static __device__ __forceinline__ AttentionRange attention_queries(const Attention &at, int begin, int end, int length)
{
    const int64_t window = at.args.window > 0 ? at.args.window : length, before = at.args.causal ? 1 : window;

    return attention_clip(begin - before + 1, end - 1 + window, length);
}

static __device__ __forceinline__ bool attention_sees(const Attention &at, int query, int key, int length)
{
    const int64_t window = at.args.window > 0 ? at.args.window : length;

    return query < length && key < length && query - key < window && key - query < (at.args.causal ? 1 : window);
}

/* ---- dropout of probabilities ---- */

/* The index of key 0 in the mask of a query. */
static __device__ __forceinline__ uint64_t attention_mask_row(const Attention &at, int64_t row, int64_t head)
{
    const tpi_attention_args &args = at.args;

    return static_cast<uint64_t>((args.first_token + row) * args.total_heads + args.first_head + head) << 24;
}

/* ---- rows ---- */

static __device__ __forceinline__ int64_t attention_element(int64_t row, int64_t stride, int64_t head, int64_t head_dim)
{
    return row * stride + head * head_dim;
}

/* f32 rows of a head into lines of Dim + 4 elements, zeros where there is no row or no such element. */
template <int Rows, int Dim, int Threads>
__device__ __forceinline__ void attention_load_f32(float *tile, const float *from, int64_t stride, int rows,
                                                   const Attention &at)
{
    const int head_dim = static_cast<int>(at.args.head_dim);

    if (at.vector) {
#pragma unroll 4
        for (int i = threadIdx.x; i < Rows * Dim / 4; i += Threads) {
            const int row = i / (Dim / 4), d = i % (Dim / 4) * 4;
            const bool exists = row < rows && d < head_dim;

            copy_async_16(tile + row * (Dim + 4) + d, exists ? from + row * stride + d : from, exists ? 16 : 0);
        }
    } else {
#pragma unroll 4
        for (int i = threadIdx.x; i < Rows * Dim; i += Threads) {
            const int row = i / Dim, d = i % Dim;
            const bool exists = row < rows && d < head_dim;

            copy_async_4(tile + row * (Dim + 4) + d, exists ? from + row * stride + d : from, exists);
        }
    }
}

#endif

} // namespace tpi

#endif
