/* The layers as the layout harness sees them. */
#ifndef TPT_LAYER_TABLES_H
#define TPT_LAYER_TABLES_H

#include "layouts.h"

extern const tpt_layer_table tpt_linear_table, tpt_norm_table, tpt_mlp_table, tpt_attention_table, tpt_block_table;

#endif
