/* Inside an attention layer: which heads this rank has, and who shares them. */
#ifndef TPI_ATTENTION_H
#define TPI_ATTENTION_H

#include <tp/attention.h>

#include "layers/chain.h"

/* How partial dK, dV are added up. A slot is the chain over the query heads of one virtual rank that read one kv
 * head. */
typedef struct tpi_head_map {
    tp_range heads, kv_heads;  /* global indices of this rank's query heads and of the kv heads it holds */
    int blocks;                /* virtual ranks of this rank */
    int slots;
    int32_t *kv_of_head;       /* [heads here] local kv head */
    int32_t *slot_of_head;     /* [heads here] */
    int32_t *slot_of;          /* [kv heads here][blocks]: the slot, or -1 where that virtual rank reads no such head */
    int32_t *holders;          /* [kv heads here]: virtual ranks, of all ranks, that read it */
    int64_t shared;            /* kv heads, of all, that several real ranks hold */
    int64_t *shared_index;     /* [kv heads here]: its place among the shared ones, or -1 */
    void *memory;
    size_t bytes;
} tpi_head_map;

struct tp_attention {
    tp_ctx *ctx;
    tp_attention_desc desc;
    char name[TP_PARAM_NAME];
    tp_linear *qkv, *proj;
    tpi_site chain, backward; /* both layers in one plan; empty: one after the other */
    tpi_head_map map;
    int64_t q_width, kv_width; /* features of this rank: q, and k or v */
};

tp_status tpi_head_map_create(tp_ctx *ctx, int64_t heads, int64_t kv_heads, tpi_head_map *out);
void tpi_head_map_destroy(tp_ctx *ctx, tpi_head_map *map);

/* The op's arguments for this rank's heads over saved->qkv. */
tpi_attention_args tpi_attention_core_args(const tp_attention *layer, const tp_pass *pass,
                                           const tp_attention_saved *saved);

/* Rotates q and k of a [T, q | k | v] matrix in place; inverse: back. Nothing without rotary embedding. */
tp_status tpi_attention_rotate(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_tensor *qkv,
                               bool inverse);

/* dcore -> dqkv. */
tp_status tpi_attention_core_backward(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass,
                                      const tp_tensor *dcore, const tp_attention_saved *saved, const tp_tensor *dqkv);

#endif
