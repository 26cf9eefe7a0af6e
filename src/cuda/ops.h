/* The CUDA backend's ops: one file a noun, each the slot of THE backend table (core/backend.h) of the same name.
 * Compiles as C and C++. */
#ifndef TPI_CUDA_OPS_H
#define TPI_CUDA_OPS_H

#include "core/ops.h"

TP_BEGIN_DECLS

size_t tpi_cuda_gemm_packed_bytes(tp_ctx *ctx, tp_dtype dtype, int64_t cols, int64_t inner, const tpi_inner *order);
tp_status tpi_cuda_gemm_pack(tpi_stream *stream, const tpi_operand *b, int64_t cols, int64_t inner,
                             const tpi_inner *order, const tpi_packed *out);
tp_status tpi_cuda_gemm(tpi_stream *stream, const tpi_gemm_args *args);
tp_status tpi_cuda_reduce(tpi_stream *stream, const tpi_reduce_args *args);
tp_status tpi_cuda_peer_reduce(tpi_stream *stream, const tpi_peer_reduce_args *args);
/* What it launches, without and with a norm; and the loading of all these kernels. */
tp_status tpi_cuda_peer_load(tpi_stream *stream);
tp_status tpi_cuda_peer_load_norm(tpi_stream *stream);
tp_status tpi_cuda_peer_sum(tpi_stream *stream, const tpi_peer_reduce_args *args);
tp_status tpi_cuda_peer_sum_norm(tpi_stream *stream, const tpi_peer_reduce_args *args);
tp_status tpi_cuda_map(tpi_stream *stream, const tpi_map_args *args);
tp_status tpi_cuda_activation(tpi_stream *stream, const tpi_activation_args *args);
tp_status tpi_cuda_rope(tpi_stream *stream, const tpi_rope_args *args);
tp_status tpi_cuda_norm(tpi_stream *stream, const tpi_norm_args *args);
tp_status tpi_cuda_norm_grad(tpi_stream *stream, const tpi_norm_grad_args *args);
tp_status tpi_cuda_attention(tpi_stream *stream, const tpi_attention_args *args);
tp_status tpi_cuda_attention_grad(tpi_stream *stream, const tpi_attention_grad_args *args);
tp_status tpi_cuda_embedding(tpi_stream *stream, const tpi_embedding_args *args);
tp_status tpi_cuda_embedding_grad(tpi_stream *stream, const tpi_embedding_grad_args *args);
tp_status tpi_cuda_xent(tpi_stream *stream, const tpi_xent_args *args);
tp_status tpi_cuda_square_sum(tpi_stream *stream, const tpi_square_sum_args *args);
tp_status tpi_cuda_optimizer(tpi_stream *stream, const tpi_optimizer_args *args);
/* Lists of them, in few launches. */
tp_status tpi_cuda_square_sum_list(tpi_stream *stream, const tpi_square_sum_args *args, int count);
tp_status tpi_cuda_optimizer_list(tpi_stream *stream, const tpi_optimizer_args *args, int count);
tp_status tpi_cuda_random_fill(tpi_stream *stream, const tpi_random_fill_args *args);

TP_END_DECLS
#endif
