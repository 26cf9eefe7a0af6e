/* What the kernels of the gradient of attention on tensor cores share. Probabilities are computed again from the
 * log-sum-exp (Dao et al. 2022): P = exp(scale q k - lse), dV = P^T dO, dP = dO V^T, dS = P (dP - delta), dQ = scale dS
 * K, dK = scale dS^T Q.
 *
 * One kernel by tiles of queries makes dQ, one by tiles of keys dK and dV. In both a warp owns 16 rows of its block's
 * tile, q and dO or k and v, as fragments in registers (in shared memory where heads are long), computes scores and dP
 * of them against 16 or 32 rows of the other side, and uses what comes out as the left operand of the next product as
 * it lies in registers. */
#ifndef TPI_CUDA_ATTENTION_GRAD_MMA_CUH
#define TPI_CUDA_ATTENTION_GRAD_MMA_CUH

#include "cuda/attention_tile.cuh"

namespace tpi {

template <int Dim> struct GradShape {
    static constexpr bool Kept = Dim <= 128; /* own rows are in registers */
    static constexpr int Line = Dim + 8;
    /* rows of a block's tile, of the other side's tiles */
    static constexpr int Own = Kept ? 128 : 64, Other = Kept ? 64 : 16;
    static constexpr int Warps = Own / 16;
    static constexpr int Lines = Kept ? 4 * Other : 2 * Own + 4 * Other;
    static_assert(!Kept || 2 * Own <= Lines, "own rows pass through the other side's place");
};

/* Own rows: those of two tensors. The other side: two stages of two tensors. */
template <int Dim> struct GradTiles {
    typedef GradShape<Dim> Shape;
    uint16_t line[Shape::Lines * Shape::Line];

    __device__ __forceinline__ uint16_t *own(int tensor)
    {
        return line + tensor * Shape::Own * Shape::Line;
    }
    __device__ __forceinline__ uint16_t *other(int stage, int tensor)
    {
        return line + ((Shape::Kept ? 0 : 2 * Shape::Own) + (2 * stage + tensor) * Shape::Other) * Shape::Line;
    }
};

#ifdef __CUDACC__

/* A warp's own rows as left operands. */
template <int Dim> struct GradOwn {
    uint32_t kept[2][GradShape<Dim>::Kept ? Dim / 16 : 1][4];
    const uint16_t *rows[2]; /* where they are not kept */
};

/* own0, own1: the warp's rows, in shared memory. */
template <int Dim>
__device__ __forceinline__ void grad_take(GradOwn<Dim> &own, const uint16_t *own0, const uint16_t *own1)
{
    own.rows[0] = own0;
    own.rows[1] = own1;
    if (GradShape<Dim>::Kept) {
#pragma unroll
        for (int i = 0; i < Dim / 16; i++) {
            load_left(own.kept[0][i], own0 + i * 16, Dim + 8);
            load_left(own.kept[1][i], own1 + i * 16, Dim + 8);
        }
    }
}

template <int Dim>
__device__ __forceinline__ void grad_left(uint32_t (&left)[4], const GradOwn<Dim> &own, int tensor, int d)
{
    if (GradShape<Dim>::Kept) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[i] = own.kept[tensor][GradShape<Dim>::Kept ? d / 16 : 0][i];
    } else {
        load_left(left, own.rows[tensor] + d, Dim + 8);
    }
}

/* Scores and dP of a warp's rows and 8 Count others. */
template <int Count> struct GradScores {
    float score[Count][4], gradient[Count][4];
};

template <typename T, int Dim, int Count>
__device__ __forceinline__ void grad_products(const GradOwn<Dim> &own, const uint16_t *other0, const uint16_t *other1,
                                              GradScores<Count> &product)
{
    constexpr int Line = Dim + 8;

    product = {};
#pragma unroll (GradShape<Dim>::Kept ? 8 : 4)
    for (int d = 0; d < Dim; d += 16) {
        uint32_t left0[4], left1[4];

        grad_left<Dim>(left0, own, 0, d);
        grad_left<Dim>(left1, own, 1, d);
#pragma unroll
        for (int n = 0; n < Count; n += 2) {
            uint32_t right[4];

            load_right(right, other0 + n * 8 * Line + d, Line);
            multiply_add<T>(product.score[n], left0, right[0], right[1]);
            multiply_add<T>(product.score[n + 1], left0, right[2], right[3]);
            load_right(right, other1 + n * 8 * Line + d, Line);
            multiply_add<T>(product.gradient[n], left1, right[0], right[1]);
            multiply_add<T>(product.gradient[n + 1], left1, right[2], right[3]);
        }
    }
}

/* sum[16 own rows, Width] += weight[16, 8 Count] other[8 Count, Width], lines of Line. */
template <typename T, int Width, int Line, int Count>
__device__ __forceinline__ void grad_add(const float (&weight)[Count][4], const uint16_t *other,
                                         float (&sum)[Width / 8][4])
{
#pragma unroll
    for (int k = 0; k < Count; k += 2) {
        const uint32_t left[4] = {
            packed_pair<T>(weight[k][0], weight[k][1]), packed_pair<T>(weight[k][2], weight[k][3]),
            packed_pair<T>(weight[k + 1][0], weight[k + 1][1]), packed_pair<T>(weight[k + 1][2], weight[k + 1][3])};

#pragma unroll
        for (int d = 0; d < Width / 16; d++) {
            uint32_t right[4];

            load_right_transposed(right, other + k * 8 * Line + d * 16, Line);
            multiply_add<T>(sum[2 * d], left, right[0], right[1]);
            multiply_add<T>(sum[2 * d + 1], left, right[2], right[3]);
        }
    }
}

/* Pairs that are not seen: probability and dS come out 0. range: what own row lane / 4 + 8 h sees of the other side;
 * first: the other side's row that this thread's first column is. */
template <int Count>
__device__ __forceinline__ void grad_mask(const AttentionRange (&range)[2], int first, GradScores<Count> &product)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const AttentionRange seen = {range[h].begin - first, range[h].end - first};

#pragma unroll
        for (int n = 0; n < 2 * Count; n++) {
            const int at = h * 2 + n % 2;
            const bool is_seen = is_within(seen, n / 2 * 8 + n % 2);

            product.score[n / 2][at] = is_seen ? product.score[n / 2][at] : -INFINITY;
            product.gradient[n / 2][at] = is_seen ? product.gradient[n / 2][at] : 0.0f;
        }
    }
}

/* A score becomes the probability, dP becomes dS. known: a query's lse in powers of 2, and delta. */
static __device__ __forceinline__ void grad_soften(float scale, float2 known, float &score, float &gradient)
{
    score = power_of_2(__fmaf_rn(score, scale, -known.x));
    gradient = __fmul_rn(score, __fsub_rn(gradient, known.y));
}

#endif

} // namespace tpi

#endif
