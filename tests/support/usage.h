/* What training uses, to compare a dry run with a real one. */
#ifndef TPT_USAGE_H
#define TPT_USAGE_H

#include <tp/tp.h>

typedef struct tpt_usage {
    size_t peak[TP_MEMORY_KINDS];
    double flops;
} tpt_usage;

/* Two steps of the whole training loop, of 4 sequences in microbatches of 2. */
tp_status tpt_usage_of_training(tp_ctx *ctx, const tp_model_desc *desc, const tp_data *data, int64_t sequence,
                                tpt_usage *out);

#endif
