/* Two linear layers and what lies between them as one plan: column, activation or attention core, row. The second GEMM of a piece may run before the gather
 * or the first GEMM of another is done. */
#ifndef TPI_CHAIN_H
#define TPI_CHAIN_H

#include "layers/linear.h"

/* One forward call. */
typedef struct tpi_chain_call {
    tpi_linear_call first, second;
    tp_tensor middle, core; /* all rows: what the first GEMM writes and what the second reads */
    /* From middle to core, on all rows or those of one piece; NULL: the first GEMM's epilogue does it, middle is core. */
    tp_status (*compute)(const struct tpi_chain_call *call, tpi_stream *stream, tp_range rows);
    const void *layer;
    const void *saved;
} tpi_chain_call;

/* The plans of a layer of these two; none where there is nothing to overlap: one rank, or no algorithm. whole_core: what lies between needs all rows
 * at once. */
tp_status tpi_chain_prepare(const tp_linear *first, const tp_linear *second, bool whole_core, tpi_site *out);

/* Fills in the linear calls for `pass`. */
tp_status tpi_chain_begin(tp_ctx *ctx, const tp_linear *first, const tp_linear *second, const tp_pass *pass, tpi_chain_call *call);
tp_status tpi_chain_forward(tpi_chain_call *call, const tpi_site *site, const tp_io *io);

#endif
