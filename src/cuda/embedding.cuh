/* What both directions of an embedding do about wrong ids. */
#ifndef TPI_CUDA_EMBEDDING_CUH
#define TPI_CUDA_EMBEDDING_CUH

#include "cuda/sequences.cuh"

namespace tpi
{

/* Positions are known here: the first that the table doesn't have is refused. offsets as given to sequences_of. */
inline tp_status check_positions(tpi_stream *stream, const int64_t *offsets, const Sequences &sequences,
                                 int64_t positions)
{
    int64_t begin = 0;

    for (int64_t s = 0; s < sequences.count; s++) {
        int64_t length = offsets ? offsets[s + 1] - offsets[s] : sequences.length;

        if (length > positions)
            return tpi_cuda_refuse(stream, TP_ERR_ARGUMENT, TPI_WRONG_ID, "positions",
                                   static_cast<long long>(begin + positions), static_cast<long long>(positions),
                                   "positions", static_cast<long long>(positions));
        begin += length;
    }
    return TP_OK;
}

#ifdef __CUDACC__

/* Ids are known to kernels only: the first wrong one that is seen fails the context's next synchronisation. */
struct IdCheck {
    tpi_cuda_fault *fault;
    tpi_cuda_fault_kind kind;
    int64_t first_row, vocabulary;
};

inline IdCheck id_check_of(tpi_stream *stream, bool positions, int64_t first_row, int64_t vocabulary)
{
    return {tpi_cuda_device_of(stream)->fault, positions ? TPI_CUDA_FAULT_POSITION : TPI_CUDA_FAULT_ID, first_row,
            vocabulary};
}

static __device__ __forceinline__ void check_id(const IdCheck &check, int64_t id, int64_t row)
{
    if (id < 0 || id >= check.vocabulary)
        report_fault(check.fault, check.kind, static_cast<int>(id), check.first_row + row, check.vocabulary);
}

#endif

} // namespace tpi

#endif
