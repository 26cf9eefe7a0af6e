#include "cuda/gemm_mma.cuh"

tpi::GemmKernel tpi::gemm_kernel_bf16(bool a_inner, bool b_inner, tpi::GemmSize size)
{
    return mma_kernel_of<__nv_bfloat16>(a_inner, b_inner, size);
}
