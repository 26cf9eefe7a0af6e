/* Inside a linear layer: its fields, and one call of it as the plan's ops see it. */
#ifndef TPI_LINEAR_H
#define TPI_LINEAR_H

#include <tp/overlap.h>

#include "layers/layer.h"
#include "comm/table.h"
#include "plan/execute.h"

struct tp_linear {
    tp_ctx *ctx;
    tp_linear_desc desc;
    char name[TP_PARAM_NAME];
    tp_comm *group;
    int ranks;
    tp_param *weight, *bias;
    int64_t in_local, out_local; /* features of this rank */
    bool gather_input;           /* COLUMN under sequence parallelism: tokens of x are sharded */
    bool gather_gradient;        /* ROW under sequence parallelism: tokens of dy are */
    tp_plan *forward, *input, *weight_plan;
};

/* One call: what the callbacks of the plan read and write. Tensors are views. */
typedef struct tpi_linear_call {
    tp_ctx *ctx;
    const tp_linear *layer;
    tp_pass pass;
    tp_tensor local;    /* this rank's rows, before the gather or after the reduction */
    tp_tensor operand;  /* left operand of the GEMM: all tokens */
    tp_tensor result;   /* what the GEMM writes: the output itself, or f32 partial sums */
    tp_tensor residual;
    bool finish;        /* the GEMM's own epilogue finishes the output: no reduction follows */
    tpi_linear_fusion fusion;
    const tp_linear_saved *saved; /* weight gradient */
} tpi_linear_call;

/* The forward and input-gradient callbacks are in linear.c and linear_backward.c; both use these. */
tp_status tpi_linear_run(tpi_linear_call *call, const tp_plan *plan, const tpi_plan_table *table);
tp_status tpi_linear_gather(void *user, tpi_stream *stream, const tp_plan_op *op);
bool tpi_linear_splits_tokens(const tp_linear *layer);
/* Rows of this rank on the side that sequence parallelism shards. */
tp_range tpi_linear_rows(const tp_linear *layer, const tp_pass *pass);

#endif
