/* What follows from a model's description alone. */
#ifndef TPI_MODEL_SHAPE_H
#define TPI_MODEL_SHAPE_H

#include <tp/model.h>

/* tp_model_check with the context's message. */
tp_status tpi_model_check(tp_ctx *ctx, const tp_model_desc *desc, int tp);

/* A checked description without zeros that mean a default. */
tp_model_desc tpi_model_resolve(const tp_model_desc *desc);

bool tpi_model_tied(const tp_model_desc *desc);
bool tpi_model_gated(const tp_model_desc *desc);

#endif
