/* From a description to a model. */
#ifndef TPI_MODEL_BUILD_H
#define TPI_MODEL_BUILD_H

#include <tp/model.h>

/* The model was made from `desc` (resolved) and owns its total. */
void tpi_model_adopt(tp_model *model, const tp_model_desc *desc);

/* The description of a model made by tp_model_create, NULL for a composed one. */
const tp_model_desc *tpi_model_desc_of(const tp_model *model);

/* The context that the model was made with; NULL if model is. */
const tp_ctx *tpi_model_ctx(const tp_model *model);

/* The f32 [2] that losses are added to. */
tp_status tpi_model_loss_reset(tp_ctx *ctx, tp_model *model);

enum { TPI_MODEL_TOTAL_BYTES = 2 * sizeof(float) };

#endif
