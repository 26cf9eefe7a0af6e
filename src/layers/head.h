/* The head module: logits and loss of a model. */
#ifndef TPI_LAYERS_HEAD_H
#define TPI_LAYERS_HEAD_H

#include <tp/module.h>

/* True for the head made by tp_module_head; then *logits are those of its last forward with this saved memory. */
bool tpi_head_logits(const tp_module *module, const void *saved, tp_tensor *logits);

#endif
