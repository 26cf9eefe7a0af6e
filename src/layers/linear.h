/* Inside a linear layer: its fields, and one call of it as the plan's ops see it. */
#ifndef TPI_LINEAR_H
#define TPI_LINEAR_H

#include "layers/layer.h"
#include "plan/execute_site.h"

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
    tpi_site forward, input, weight_site;
    tpi_site both;          /* input and weight gradient in one plan; empty: one after the other */
    tpi_site weight_direct; /* ROW whose dy was not gathered: its weight gradient reads peers' too */
};

/* One call: what the callbacks of a plan read beside the plan's views. */
typedef struct tpi_linear_call {
    tp_ctx *ctx;
    const tp_linear *layer;
    tp_pass pass;
    bool direct;        /* ROW: dy is not gathered, which this number of tokens is as well off without */
    bool finish;        /* the GEMM's own epilogue finishes the output: no reduction follows */
    tp_tensor residual; /* with finish: of all rows */
    tpi_linear_fusion fusion;
    tp_tensor whole; /* ROW's input gradient: where dy of all tokens has to be afterwards; none: nowhere */
} tpi_linear_call;

/* The GEMMs of one op: forward from read[0] into write[0], input gradient likewise, weight gradient from INPUT (dy) and
 * SECOND (x). */
tp_status tpi_linear_forward_op(const tpi_linear_call *call, const tpi_run *run, tpi_stream *stream,
                                const tp_plan_op *op);
tp_status tpi_linear_input_op(const tpi_linear_call *call, const tpi_run *run, tpi_stream *stream,
                              const tp_plan_op *op);
tp_status tpi_linear_weight_op(const tpi_linear_call *call, const tpi_run *run, tpi_stream *stream,
                               const tp_plan_op *op);

/* What the reduction of forward adds to the sum. */
tp_reduce_desc tpi_linear_reduce(const tpi_linear_call *call);

/* ROW's backward in one plan. */
tp_status tpi_linear_run_slices(const tpi_linear_call *linear, const tp_io *io, tp_tensor x);

/* dW += dy^T x over so many tokens. */
tp_status tpi_linear_weight_rows(const tpi_linear_call *call, tpi_stream *stream, int64_t tokens, tpi_view dy,
                                 tpi_view x);
/* dy after dropout's mask, in scratch where there is one. */
tp_status tpi_linear_mask(const tpi_linear_call *call, tp_tensor dy, tp_tensor *out);
/* Pieces of GATHERED, and of INPUT where the algorithm leaves own ones there, into a tensor of all rows, unless they
 * are there. */
tp_status tpi_linear_collect(const tpi_linear_call *call, const tpi_run *run, tpi_stream *stream, tp_tensor to);

/* Scratch that the plan's algorithm needs: `to` (GATHERED, GATHERED_SECOND) for rows of `like` (INPUT, SECOND), and
 * partial sums of `cols` columns with peers' INBOX. */
tp_status tpi_linear_gathered(const tpi_linear_call *call, const tpi_prepared *plan, tp_buffer like, tp_buffer to,
                              tpi_job *job);
tp_status tpi_linear_partial(const tpi_linear_call *call, const tpi_prepared *plan, int64_t cols, tpi_job *job);

bool tpi_linear_splits_tokens(const tp_linear *layer);
/* Rows of this rank on the side that sequence parallelism shards. */
tp_range tpi_linear_rows(const tp_linear *layer, const tp_pass *pass);

/* Each side of a call: output and input gradient with their residuals. */
tp_status tpi_linear_check_input(const tp_linear *layer, const tp_pass *pass, tp_tensor x);
tp_status tpi_linear_check_output(const tp_linear *layer, const tp_pass *pass, const tp_io *io);
tp_status tpi_linear_check_output_gradient(const tp_linear *layer, const tp_pass *pass, tp_tensor gradient);
tp_status tpi_linear_check_input_gradient(const tp_linear *layer, const tp_pass *pass, const tp_io *io);
/* What the weight gradient reads, if there is one: x as forward was given it. */
tp_status tpi_linear_check_saved(const tp_linear *layer, const tp_pass *pass, const tp_linear_saved *saved);
/* What it reads besides, if there is one of the weight or the bias. */
tp_status tpi_linear_check_delayed(const tp_linear *layer, const tp_pass *pass, const tp_linear_delayed *delayed);
tp_status tpi_linear_begin(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, int64_t rows,
                           tpi_linear_call *call);

#endif
