/* Stand-ins for tasks that are still to come; the linker prefers the real ones. */
#include "cpu/cpu.h"

#define PENDING(name)                                                                                                  \
    __attribute__((weak)) tp_status CPU(name)(tp_ctx * ctx, const void *args)                                          \
    {                                                                                                                  \
        (void)args;                                                                                                    \
        return tpi_fail(ctx, TP_ERR_UNSUPPORTED, #name " is not there yet");                                           \
    }

PENDING(gemm)
PENDING(gemm_pack)
PENDING(attention)
PENDING(attention_grad)

__attribute__((weak)) size_t CPU(gemm_packed_bytes)(tp_dtype dtype, int64_t cols, int64_t inner, const tpi_inner *order)
{
    (void)order;
    return (size_t)(cols * inner) * tp_dtype_size(dtype);
}
