/* Stand-ins for tasks that are still to come; the linker prefers the real ones. */
#include "cpu/cpu.h"

#define PENDING(name)                                                                                                  \
    __attribute__((weak)) tp_status CPU(name)(tp_ctx * ctx, const void *args)                                          \
    {                                                                                                                  \
        (void)args;                                                                                                    \
        return tpi_fail(ctx, TP_ERR_UNSUPPORTED, #name " is not there yet");                                           \
    }

PENDING(attention)
PENDING(attention_grad)
