/* What the trainer needs of an optimizer beside the public calls. */
#ifndef TPI_OPTIMIZER_H
#define TPI_OPTIMIZER_H

#include <tp/optimizer.h>

/* As tp_optimizer_create checks it, nothing allocated. */
tp_status tpi_optimizer_check(tp_ctx *ctx, const tp_optimizer_desc *desc);

/* Steps that counted so far: waits for the last one's verdict. */
tp_status tpi_optimizer_steps(tp_optimizer *optimizer, int64_t *steps);

#endif
