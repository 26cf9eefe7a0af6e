/* The table of one instruction set. AVX512-BF16 adds a dot product, for which operands are packed in pairs; ops that
 * know of neither are those of AVX-512. */
#include "cpu/cpu.h"

#if TPI_ISA_LEVEL == 3
#define SHARED(name) tpi_cpu_##name##_avx512
tp_status SHARED(reduce)(tp_ctx *ctx, const void *args);
tp_status SHARED(map)(tp_ctx *ctx, const void *args);
tp_status SHARED(activation)(tp_ctx *ctx, const void *args);
tp_status SHARED(rope)(tp_ctx *ctx, const void *args);
tp_status SHARED(norm)(tp_ctx *ctx, const void *args);
tp_status SHARED(norm_grad)(tp_ctx *ctx, const void *args);
tp_status SHARED(embedding)(tp_ctx *ctx, const void *args);
tp_status SHARED(embedding_grad)(tp_ctx *ctx, const void *args);
tp_status SHARED(xent)(tp_ctx *ctx, const void *args);
tp_status SHARED(square_sum)(tp_ctx *ctx, const void *args);
tp_status SHARED(random_fill)(tp_ctx *ctx, const void *args);
void SHARED(sum_pair)(tp_dtype dtype, void *out, const void *left, const void *right, int64_t elements);
#else
#define SHARED(name) CPU(name)
#endif

const tpi_cpu_table CPU(table) = {
    .gemm = CPU(gemm),
    .reduce = SHARED(reduce),
    .map = SHARED(map),
    .activation = SHARED(activation),
    .rope = SHARED(rope),
    .norm = SHARED(norm),
    .norm_grad = SHARED(norm_grad),
    .attention = CPU(attention),
    .attention_grad = CPU(attention_grad),
    .embedding = SHARED(embedding),
    .embedding_grad = SHARED(embedding_grad),
    .xent = SHARED(xent),
    .square_sum = SHARED(square_sum),
    .optimizer = CPU(optimizer),
    .random_fill = SHARED(random_fill),
    .gemm_pack = CPU(gemm_pack),
    .gemm_packed_bytes = CPU(gemm_packed_bytes),
    .sum_pair = SHARED(sum_pair),
};
