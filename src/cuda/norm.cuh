/* What the kernels of norms share: where a thread is in its row, and how it reads it. A row has 64/N neighbouring
 * threads of a warp, each with N of the 64 chains of row_total (vec.cuh), so that sums are the CPU's. */
#ifndef TPI_CUDA_NORM_CUH
#define TPI_CUDA_NORM_CUH

#include "cuda/lane.cuh"
#include "cuda/mma.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

/* Where a thread is among the rows of its warp's set. */
template <typename T> struct RowPlace {
    static constexpr int N = 16 / sizeof(T), LANES = ROW_CHAINS / N, ROWS = 32 / LANES;

    int64_t row, col, steps;
    int64_t left; /* columns from `col` on that are read */
    bool there;

    /* Threads beyond the last row read nothing and stay: sums need all lanes. */
    __device__ __forceinline__ RowPlace(int64_t set, int64_t rows, int64_t cols)
    {
        row = set * ROWS + threadIdx.x % 32 / LANES;
        there = row < rows;
        row = there ? row : rows - 1;
        col = threadIdx.x % LANES * N;
        left = there ? cols - col : 0;
        steps = (cols + ROW_CHAINS - 1) / ROW_CHAINS;
    }
};

/* Calls fn(step, n) for a row's steps: n of a thread's N columns exist, at most, and all of them where n is
 * ROW_CHAINS. */
template <int Unroll, typename T, typename F>
__device__ __forceinline__ void for_each_step(const RowPlace<T> &place, int64_t cols, F fn)
{
    int64_t whole = cols / ROW_CHAINS;

#pragma unroll Unroll
    for (int64_t step = 0; step < whole; step++)
        fn(step, static_cast<int64_t>(ROW_CHAINS));
    if (whole < place.steps)
        fn(whole, cols - whole * ROW_CHAINS - place.col);
}

/* A thread's columns of one row: of step s, N from column s * 64 + col on. Kept: they wait in shared memory, in slots
 * that no other thread touches, so that the whole row is on its way at once and comes from memory only once. */
template <bool Aligned, bool Kept, typename T> struct RowReader {
    static constexpr int N = 16 / sizeof(T);

    const T *data; /* at the thread's first column */
    uint4 *slots;  /* a step's is 32 further */
    int64_t left;  /* columns from there on */

    __device__ __forceinline__ RowReader(const void *matrix, int64_t stride, const RowPlace<T> &place,
                                         uint4 *first_slot)
        : data(static_cast<const T *>(matrix) + place.row * stride + place.col), slots(first_slot), left(place.left)
    {
    }

    /* Begins to fill the slots, as one group of copies. */
    __device__ __forceinline__ void fetch(const RowPlace<T> &place, int64_t cols) const
    {
        if (Kept)
            for_each_step<4>(place, cols, [&](int64_t step, int64_t n) {
                Vector<T> vector;

                vector.words = make_uint4(0, 0, 0, 0);
                if (!Aligned)
                    read(vector, step);
                if (Aligned && place.there && n > 0)
                    copy_async_16(slots + step * 32, data + step * ROW_CHAINS,
                                  static_cast<int>(n < N ? n : N) * static_cast<int>(sizeof(T)));
                else
                    slots[step * 32] = vector.words;
            });
        if (Kept && Aligned)
            copies_commit();
    }

    /* Until at most `Groups` of the thread's fetches are under way. */
    template <int Groups> static __device__ __forceinline__ void wait()
    {
        if (Kept && Aligned)
            copies_wait<Groups>();
    }

    /* What was fetched must have been waited for. */
    __device__ __forceinline__ void get(float (&x)[N], int64_t step) const
    {
        Vector<T> vector;

        if (Kept)
            vector.words = slots[step * 32];
        else
            read(vector, step);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = to_float(vector.at[i]);
    }

  private:
    __device__ __forceinline__ void read(Vector<T> &vector, int64_t step) const
    {
        const T *from = data + step * ROW_CHAINS;
        int64_t n = left - step * ROW_CHAINS;

        if (Aligned && n >= N) {
            vector.words = *reinterpret_cast<const uint4 *>(from);
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            vector.at[i] = i < n ? from[i] : from_float<T>(0.0f);
    }
};

/* N elements of a gain or bias, which no kernel here writes: so that they may be read before what is stored first. */
template <bool Aligned, int N, typename T>
__device__ __forceinline__ void load_weights(float (&x)[N], const void *weights, int64_t col, int64_t n)
{
    const T *data = static_cast<const T *>(weights) + col;
    Vector<T> vector;

    if (!Aligned || n < N) {
        load<false>(x, data, n);
        return;
    }
    vector.words = __ldg(reinterpret_cast<const uint4 *>(data));
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = to_float(vector.at[i]);
}

/* Whether the device lets a block have shared memory for `arrays` arrays' rows; above 48 KiB the kernel must be
 * told. */
template <typename Kernel>
bool shared_for_rows(const tpi_stream *stream, Kernel kernel, int64_t cols, int arrays, size_t *bytes)
{
    constexpr size_t STEP_BYTES = 32 * 16; /* one vector of each thread of a warp */

    *bytes = static_cast<size_t>(divided_up(cols, ROW_CHAINS)) * STEP_BYTES * static_cast<size_t>(arrays);
    return *bytes <= tpi_cuda_device_of(stream)->shared_bytes &&
           (*bytes <= 48 * 1024 || cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                        static_cast<int>(*bytes)) == cudaSuccess);
}

/* (x - mean - rest) * rstd, the same wherever it is needed. */
static __device__ __forceinline__ float normalized(float x, float mean, float rest, float rstd)
{
    return vf_mul(vf_sub(vf_sub(x, mean), rest), rstd);
}

/* What rounding to f32 left over of each row's mean, then the gain's and bias's gradients. rest: [rows]; NULL for
 * RMSNorm. */
tp_status gain_gradients(tpi_stream *stream, const tpi_norm_grad_args *args, float *rest);

} // namespace tpi

#endif
