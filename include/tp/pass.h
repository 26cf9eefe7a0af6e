/* What a forward or backward call works on: how many tokens there are, where sequences begin, and which random numbers
 * to use. */
#ifndef TP_PASS_H
#define TP_PASS_H

#include <tp/context.h>

/* Tokens are rows, sequence after sequence. Equal on all ranks of the tensor-parallel group. Pointers are device memory
 * of the context and must stay unchanged until the last call of the pass (backward included). */
typedef struct tp_pass {
    int64_t tokens;    /* global rows: sum of the sequence lengths */
    int64_t sequences; /* 0: one sequence of all tokens */
    /* [sequences + 1] first row of each sequence, offsets[0] = 0, offsets[sequences] = tokens (cumulative lengths).
     * NULL: equal lengths tokens / sequences, which must divide. Host memory. */
    const int64_t *offsets;
    const int32_t *positions; /* [tokens] for RoPE and learned positions; NULL: place within the sequence */
    const int32_t *ids;       /* [tokens] token ids, for the embedding */
    const int32_t *targets;   /* [tokens] target ids, for the loss; negative: ignored */
    float loss_scale;         /* what the loss gradient is multiplied by (1 / valid tokens of the step, say); 0: 1 */
    uint64_t step;            /* dropout masks differ from step to step */
    bool no_dropout;          /* evaluation: as if every dropout probability were 0 */
    int64_t first_token;      /* global index of row 0 in the step's batch: masks don't depend on how the batch is
                               * split */
} tp_pass;

TP_BEGIN_DECLS

/* Rows of this rank's shard of the tokens: all without sequence parallelism. */
TP_API tp_range tp_pass_rows(const tp_ctx *ctx, const tp_pass *pass, bool sequence_parallel);

TP_END_DECLS
#endif
