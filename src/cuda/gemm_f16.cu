#include "cuda/gemm_mma.cuh"

tpi::GemmKernel tpi::gemm_kernel_f16(bool a_inner, bool b_inner, tpi::GemmSize size)
{
    return mma_kernel_of<__half>(a_inner, b_inner, size);
}
