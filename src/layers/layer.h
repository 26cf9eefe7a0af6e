/* What layers share inside the library: checks, the fused forms of linear layers that attention and MLP use, and
 * scratch handling. */
#ifndef TPI_LAYER_H
#define TPI_LAYER_H

#include <tp/attention.h>
#include <tp/linear.h>
#include <tp/mlp.h>
#include <tp/norm.h>

#include "core/context.h"
#include "core/inner.h"
#include "train/param.h"

/* The pass to use: a copy of `pass`, or, when NULL, one sequence of `rows` tokens (refused if sequence parallelism or
 * dropout need to know more). */
typedef struct tpi_pass_need {
    const char *layer;
    bool sequence_parallel;
    float dropout;
    const tp_ctx *owner; /* the layer's context */
} tpi_pass_need;
tp_status tpi_layer_pass(tp_ctx *ctx, const tpi_pass_need *need, const tp_pass *pass, int64_t rows, tp_pass *out);

/* TP_ERR_SHAPE / TP_ERR_DTYPE unless the tensor is [rows, cols] of this dtype with memory; the message names layer and
 * tensor. */
tp_status tpi_layer_check_matrix(tp_ctx *ctx, const char *layer, const char *tensor, tp_tensor given,
                                 const tp_tensor *expected);

/* TP_ERR_ARGUMENT if a call would write its output over any of its input, which it and later calls still read, or over
 * a part of its residual, which may be the very same memory only. Both are checked matrices, or none. */
tp_status tpi_layer_check_apart(tp_ctx *ctx, const char *layer, const tp_io *io);

/* The saved or delayed memory the caller gave must be there and large enough. */
tp_status tpi_layer_check_memory(tp_ctx *ctx, const char *layer, const void *memory, size_t given, size_t needed);

/* Places in a layer where dropout may be: the low byte of a site. */
enum { TPI_SITE_EMBEDDING = 1, TPI_SITE_PROBABILITIES, TPI_SITE_ATTENTION_OUTPUT, TPI_SITE_MLP_OUTPUT };

/* Dropout key of a site in a step. */
tp_random_key tpi_dropout_key(const tp_ctx *ctx, uint32_t site, const tp_pass *pass);

/* The probability in this pass. */
float tpi_pass_dropout(const tp_pass *pass, float probability);

/* Checks of common descriptor fields. */
tp_status tpi_layer_check_dropout(tp_ctx *ctx, const char *layer, const char *field, float probability);
/* Of initial values; 0: the default. */
tp_status tpi_layer_check_std(tp_ctx *ctx, const char *layer, const char *field, float std);
/* Of a layer: sites of its masks have it above their low byte. */
tp_status tpi_layer_check_number(tp_ctx *ctx, const char *layer, uint32_t number);
tp_status tpi_layer_check_overlap(tp_ctx *ctx, const char *layer, tp_overlap overlap, int chunks);
tp_status tpi_layer_check_dtype(tp_ctx *ctx, const char *layer, tp_dtype dtype);

/* A linear call with what may be fused into its GEMM. Forward: activation on the output with the pre-activation kept in
 * `pre` (COLUMN only). Backward input: the result is multiplied by activation' of `act_input` (ROW only). Forward:
 * `norm`, of the output, is done as well. */
typedef struct tpi_linear_fusion {
    tpi_activation activation;
    tp_tensor pre;
    tp_tensor act_input;
    const tpi_norm_args *norm; /* NULL: none */
} tpi_linear_fusion;

tp_status tpi_linear_forward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                             const tpi_linear_fusion *fusion, tp_linear_saved *saved);
tp_status tpi_linear_backward_input(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                                    const tpi_linear_fusion *fusion, tp_linear_delayed *delayed);

/* Forward passes that do a norm of their output as well: of all its rows, with memory of its own. NULL: none. A
 * row-parallel layer's all-reduce may do it in its own kernel; the bits are the same. */
tp_status tpi_mlp_forward(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                          const tpi_norm_args *norm, tp_mlp_saved *saved);
tp_status tpi_attention_forward(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                                const tpi_norm_args *norm, tp_attention_saved *saved);
/* A norm layer's forward, up to its op: what the op gets. */
tp_status tpi_norm_prepare(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_io *io,
                           tp_norm_saved *saved, tpi_norm_args *out);

/* Appends one parameter (NULL: none) as the *_params functions do: past the capacity it is only counted. Returns the
 * new count. */
int tpi_params_append(tp_param **out, int capacity, int at, tp_param *param);
/* Parameters of two linear layers, the first's before the second's. */
int tpi_params_of_linears(tp_linear *first, tp_linear *second, tp_param **out, int capacity);

#endif
