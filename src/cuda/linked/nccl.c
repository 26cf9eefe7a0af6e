/* For a plugin with NCCL, or its stand-in, linked into it. */
#include "cuda/nccl_calls.h"

bool tpi_nccl_linked(tpi_nccl_calls *out)
{
#define TAKE(name) .name = name,
    *out = (tpi_nccl_calls){TPI_NCCL_CALLS(TAKE) TPI_NCCL_WINDOW_CALLS(TAKE) TPI_NCCL_ADDRESS_CALLS(TAKE)};
#undef TAKE
    return true;
}
