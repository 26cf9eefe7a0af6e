/* Cross-entropy with the order of the vocabulary sums given: modules keep theirs, because ops read it when they run. */
#ifndef TPI_LAYERS_LOSS_H
#define TPI_LAYERS_LOSS_H

#include <tp/loss.h>

#include "core/ops.h"

tp_status tpi_cross_entropy_check(tp_ctx *ctx, const tp_cross_entropy_desc *desc);

/* The order of this rank's columns of a vocabulary. */
void tpi_cross_entropy_order(const tp_ctx *ctx, int64_t vocabulary, tpi_inner *out);

/* As tp_cross_entropy_forward. `order` must stay until the ops ran. */
typedef struct tpi_cross_entropy_args {
    const tp_cross_entropy_desc *desc;
    const tpi_inner *order;
    const tp_pass *pass;
    tp_tensor logits;
    float *total;
    tp_cross_entropy_saved *saved;
} tpi_cross_entropy_args;
tp_status tpi_cross_entropy_forward(tp_ctx *ctx, const tpi_cross_entropy_args *args);

/* Targets of a pass, on all ranks alike. */
tp_status tpi_cross_entropy_check_targets(tp_ctx *ctx, const tp_pass *pass, int64_t vocabulary);

#endif
