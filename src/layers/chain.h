/* Two linear layers and what lies between them as one plan: column, activation or attention core, row. The second GEMM
 * of a piece may run before the gather or the first GEMM of another is done. */
#ifndef TPI_CHAIN_H
#define TPI_CHAIN_H

#include "layers/linear.h"

/* One forward call. */
typedef struct tpi_chain_call {
    tpi_linear_call first, second;
    tp_tensor middle, core; /* all rows: what the first GEMM writes and what the second reads */
    /* From middle to core, on all rows or those of one piece; NULL: the first GEMM's epilogue does it, middle is
     * core. */
    tp_status (*compute)(const struct tpi_chain_call *call, tpi_stream *stream, tp_range rows);
    const void *layer;
    const void *saved;
} tpi_chain_call;

/* The plans of a layer of these two; none where there is nothing to overlap: one rank, or no algorithm. whole_core:
 * what lies between needs all rows at once. */
tp_status tpi_chain_prepare(const tp_linear *first, const tp_linear *second, bool whole_core, tpi_site *out);

/* The caller's tensors, before anything moves, whether or not it is a plan that does. */
tp_status tpi_chain_check(const tp_linear *first, const tp_linear *second, const tp_pass *pass, const tp_io *io);

/* Fills in the linear calls for `pass`. */
tp_status tpi_chain_begin(tp_ctx *ctx, const tp_linear *first, const tp_linear *second, const tp_pass *pass,
                          tpi_chain_call *call);
tp_status tpi_chain_forward(tpi_chain_call *call, const tpi_site *site, const tp_io *io);

/* One backward call for both gradients of both layers. `first` is the one that dy meets first, ROW; middle and core are
 * gradients of what they were. */
typedef struct tpi_chain_backward {
    tpi_linear_call first, second;
    tp_tensor row_input; /* of ROW in forward, all rows */
    tp_tensor column_input; /* of COLUMN in forward: this rank's rows under sequence parallelism */
    tp_tensor middle, core;
    tp_status (*compute)(const struct tpi_chain_backward *call, tpi_stream *stream, tp_range rows); /* NULL: as above */
    const void *layer;
    const void *saved;
    tp_tensor ordered; /* dy of all rows where the gather leaves it in another order; none: not needed */
} tpi_chain_backward;

/* None where there is nothing to overlap. */
tp_status tpi_chain_prepare_backward(const tp_linear *row, const tp_linear *column, bool whole_core, tpi_site *out);
/* Whether a backward call for everything runs the plan: there is one, both layers' weights have gradients, and dx is
 * wanted. */
bool tpi_chain_runs_backward(const tp_linear *row, const tp_linear *column, const tpi_site *site, const tp_pass *pass,
                             const tp_io *io);
tp_status tpi_chain_check_backward(const tp_linear *row, const tp_linear *column, const tp_pass *pass, const tp_io *io);
tp_status tpi_chain_begin_backward(tp_ctx *ctx, const tp_linear *row, const tp_linear *column, const tp_pass *pass,
                                   tpi_chain_backward *call);
tp_status tpi_chain_run_backward(tpi_chain_backward *call, const tpi_site *site, const tp_io *io);

#endif
