/* What ops.c asks before it dispatches: argument checks, and the work of each op. */
#ifndef TPI_OPS_CHECK_H
#define TPI_OPS_CHECK_H

#include "core/context.h"

/* One check an op: TP_OK, or a refusal that names the field and both numbers. Pointers may be NULL where nothing is
 * read or written. */
tp_status tpi_check_gemm(tp_ctx *ctx, const tpi_gemm_args *args);
tp_status tpi_check_reduce(tp_ctx *ctx, const tpi_reduce_args *args);
tp_status tpi_check_map(tp_ctx *ctx, const tpi_map_args *args);
tp_status tpi_check_activation(tp_ctx *ctx, const tpi_activation_args *args);
tp_status tpi_check_rope(tp_ctx *ctx, const tpi_rope_args *args);
tp_status tpi_check_norm(tp_ctx *ctx, const tpi_norm_args *args);
tp_status tpi_check_norm_grad(tp_ctx *ctx, const tpi_norm_grad_args *args);
tp_status tpi_check_attention(tp_ctx *ctx, const tpi_attention_args *args);
tp_status tpi_check_attention_grad(tp_ctx *ctx, const tpi_attention_grad_args *args);
tp_status tpi_check_embedding(tp_ctx *ctx, const tpi_embedding_args *args);
tp_status tpi_check_embedding_grad(tp_ctx *ctx, const tpi_embedding_grad_args *args);
tp_status tpi_check_xent(tp_ctx *ctx, const tpi_xent_args *args);
tp_status tpi_check_square_sum(tp_ctx *ctx, const tpi_square_sum_args *args);
tp_status tpi_check_optimizer(tp_ctx *ctx, const tpi_optimizer_args *args);
tp_status tpi_check_random_fill(tp_ctx *ctx, const tpi_random_fill_args *args);

/* Adds a norm's work to the context's: of one that is done within another op. */
void tpi_norm_count(tp_ctx *ctx, const tpi_norm_args *args);

/* The pieces that the checks are made of. `op` names the op in messages. */
typedef struct tpi_check {
    tp_ctx *ctx;
    const char *op;
} tpi_check;

/* low <= value <= high. */
tp_status tpi_check_range(tpi_check check, const char *field, int64_t value, int64_t low, int64_t high);
tp_status tpi_check_size(tpi_check check, const char *field, int64_t value);
/* A real number in [low, high), or, where high is infinite, any finite one from low on. */
tp_status tpi_check_number(tpi_check check, const char *field, double value, double low, double high);
tp_status tpi_check_dropout(tpi_check check, float probability);
tp_status tpi_check_pointer(tpi_check check, const char *field, const void *pointer, bool needed);
/* f32, bf16 or f16. */
tp_status tpi_check_float(tpi_check check, const char *field, tp_dtype dtype);
tp_status tpi_check_dtype(tpi_check check, const char *field, tp_dtype dtype, tp_dtype want);
/* f32, or `other`. */
tp_status tpi_check_f32_or(tpi_check check, const char *field, tp_dtype dtype, tp_dtype other);
/* A [rows, cols] matrix: pointer there if it has elements, rows not overlapping. */
typedef struct tpi_check_matrix {
    const char *field;
    const void *data;
    int64_t rows, cols, stride;
} tpi_check_matrix;
tp_status tpi_check_rows(tpi_check check, tpi_check_matrix matrix);
tp_status tpi_check_order(tpi_check check, const tpi_inner *order, int64_t inner);
tp_status tpi_check_sequences(tpi_check check, int64_t rows, int64_t sequences, const int64_t *offsets);

tpi_cost tpi_attention_grad_cost(const tpi_attention_grad_args *args);

#endif
