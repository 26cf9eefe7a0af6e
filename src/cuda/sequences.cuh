/* Rows of packed sequences on the GPU: cpu/sequences.h with `offsets` in the kernel's own arguments, or staged where
 * there are many. */
#ifndef TPI_CUDA_SEQUENCES_CUH
#define TPI_CUDA_SEQUENCES_CUH

#include "cuda/launch.cuh"

namespace tpi
{

constexpr int64_t FEW_OFFSETS = 64;

struct Sequences {
    const int64_t *offsets; /* device memory; NULL: `few`, or equal lengths */
    int64_t count, length;  /* length of each, where they are equal; else -1 */
    int64_t few[FEW_OFFSETS];
};

inline tp_status sequences_of(tpi_stream *stream, const int64_t *offsets, int64_t sequences, int64_t rows,
                              Sequences *out)
{
    *out = {};
    out->count = sequences > 0 ? sequences : 1;
    out->length = rows / out->count;
    if (!offsets)
        return TP_OK;
    out->length = -1;
    if (out->count < FEW_OFFSETS) {
        for (int64_t i = 0; i <= out->count; i++)
            out->few[i] = offsets[i];
        return TP_OK;
    }

    const void *staged;
    tp_status status = tpi_cuda_stage(stream, offsets, static_cast<size_t>(out->count + 1) * sizeof *offsets, &staged);
    out->offsets = static_cast<const int64_t *>(staged);
    return status;
}

/* Length of the longest. offsets as given to sequences_of. */
inline int64_t longest_sequence(const Sequences &sequences, const int64_t *offsets)
{
    int64_t longest = sequences.length;

    for (int64_t i = 0; offsets && i < sequences.count; i++)
        if (offsets[i + 1] - offsets[i] > longest)
            longest = offsets[i + 1] - offsets[i];
    return longest;
}

#ifdef __CUDACC__

static __device__ __forceinline__ int64_t sequence_begin(const Sequences &sequences, int64_t index)
{
    if (sequences.length >= 0)
        return sequences.length * index;
    return sequences.offsets ? sequences.offsets[index] : sequences.few[index];
}

/* Place of a row in its sequence. */
static __device__ __forceinline__ int64_t sequence_place(const Sequences &sequences, int64_t row)
{
    int64_t low = 0, high = sequences.count;

    if (sequences.length >= 0)
        return sequences.length > 0 ? row % sequences.length : row;
    while (high - low > 1) { /* begin(low) <= row < begin(high) */
        int64_t middle = low + (high - low) / 2;

        if (sequence_begin(sequences, middle) <= row)
            low = middle;
        else
            high = middle;
    }
    return row - sequence_begin(sequences, low);
}

#endif

} // namespace tpi

#endif
