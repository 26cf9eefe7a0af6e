/* Token embedding with its vocabulary cut over the tensor-parallel group, and optional learned positions. */
#ifndef TP_EMBEDDING_H
#define TP_EMBEDDING_H

#include <tp/io.h>

typedef struct tp_embedding tp_embedding;

typedef struct tp_embedding_desc {
    const char *name; /* "<name>.weight" and, with positions, "<name>.position" */
    int64_t vocabulary, features;
    int64_t positions; /* rows of learned positions; 0: none */
    tp_dtype dtype;
    float dropout;
    bool sequence_parallel;
    bool tied; /* the table is read by the head too: its gradient from here goes to grad_tied */
    float init_std;          /* 0: 0.02 */
    float position_init_std; /* 0: init_std */
    uint32_t site;
} tp_embedding_desc;

TP_BEGIN_DECLS

TP_API tp_status tp_embedding_create(tp_ctx *ctx, const tp_embedding_desc *desc, tp_embedding **out);
TP_API void tp_embedding_destroy(tp_embedding *layer);
TP_API int tp_embedding_params(tp_embedding *layer, tp_param **out, int capacity);

/* Computes    y[t] = dropout(table[ids[t]] + position_table[positions[t]]).
 * Shapes      y [T, features], dense (as dy in backward), this rank's tokens under sequence parallelism. A rank holds
 *             tp_shard_range(vocabulary, ranks, rank) rows.
 * Collectives all-reduce, under sequence parallelism reduce-scatter, of f32 rows that are zero on all ranks but the
 *             id's.
 * Saved       nothing: pass->ids must stay.
 * Errors      TP_ERR_ARGUMENT: an id outside [0, vocabulary) or a position outside [0, positions), with its place. On
 *             the CPU on all ranks, before anything is changed; on a GPU TP_OK here, and the next synchronisation fails
 *             and breaks the context (docs/cuda.md, section 2). */
TP_API tp_status tp_embedding_forward(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor y);

/* Computes    dtable[ids[t]] += dy[t], dposition[...] += dy[t], tokens in order.
 * Collectives all-gather of dy under sequence parallelism.
 * Errors      as forward: ids and positions are looked at again, all of them on all ranks. */
TP_API tp_status tp_embedding_backward(tp_ctx *ctx, const tp_embedding *layer, const tp_pass *pass, tp_tensor dy);

TP_END_DECLS
#endif
