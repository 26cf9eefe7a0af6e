/* The L2 norm of all gradients, each element of the global tensors counted once. */
#ifndef TPI_NORM_H
#define TPI_NORM_H

#include <tp/param.h>

#include "core/ops.h"

/* In which order a parameter's elements on this rank are added. */
typedef struct tpi_norm_order {
    int dim;
    tpi_inner inner;
} tpi_norm_order;

void tpi_norm_orders(tp_ctx *ctx, tp_param *const *params, int count, tpi_norm_order *orders);

/* squares[i] = sum of squares of parameter i's global gradient (0 for frozen ones), on every rank. Ordered on the
 * compute stream; `orders` must stay until then. squares: [count] device memory. */
tp_status tpi_norm_squares(tp_ctx *ctx, tp_param *const *params, int count, const tpi_norm_order *orders,
                           float *squares);

/* Root of the sum in list order. */
float tpi_norm_root(const float *squares, int count);

#endif
