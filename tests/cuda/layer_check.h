/* One layer on GPUs and on the CPU. */
#ifndef TPT_CUDA_LAYER_CHECK_H
#define TPT_CUDA_LAYER_CHECK_H

#include "support/layer_tables.h"

/* A layout on the plugin. */
tpt_layout tpt_gpus_layout(tpt_layout layout);

/* What a layer must show on GPUs: near the CPU at TP 1 (or the same bits); the bits of TP 1 at TP 2 and 4, with
 * sequence parallelism on and off, ranks on one device and on several; and with TP_SUM_FAST near the CPU. number: of
 * the case. */
void tpt_gpus_check_layer(const tpt_case *c, int depth, bool same_bits, unsigned number);

#endif
