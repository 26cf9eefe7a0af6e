/* Creating parameters, and what the library keeps beside them. */
#ifndef TPI_PARAM_H
#define TPI_PARAM_H

#include <tp/param.h>

#include "core/context.h"

typedef struct tpi_param_desc {
    const char *layer, *suffix; /* name is "<layer>.<suffix>", or "<suffix>" where layer is NULL */
    int dims;
    int64_t shape[2];
    int shard_dim; /* -1: replicated */
    int parts;
    tp_shard_part part[TP_PARAM_PARTS];
    tp_dtype dtype;
    unsigned flags;
    tp_init init;
    float init_std;
    bool packed; /* keep packed copies of a 2-D weight for both GEMMs that read it */
} tpi_param_desc;

/* Whoever keeps something of a parameter. */
typedef struct tpi_param_listener {
    /* Value was written from outside the optimizer; or, gone, the parameter is being destroyed, and nobody listens any
     * more. */
    void (*tell)(struct tpi_param_listener *listener, tp_ctx *ctx, bool gone);
    bool master; /* it keeps the master, which a parameter has one of */
    struct tpi_param_listener *next;
} tpi_param_listener;

/* param->internal. */
typedef struct tpi_param_internal {
    tp_ctx *ctx;
    bool packed;
    bool ordered; /* the cut dimension is summed by virtual ranks, or without what a neighbour owns */
    tpi_inner order; /* of the cut dimension, over this rank's shard */
    tpi_weight_copies copies; /* of value; without memory where the backend packs nothing */
    tpi_param_listener *listeners;
    uint64_t list; /* the last list that it was checked in, as numbered by the context, and its place there */
    int place;
    /* Between tp_params_begin and tp_params_finish (gradient.c). */
    bool unset;             /* grad holds anything and counts as zero: the first product of the step overwrites it */
    bool rows_known;        /* grad_tied is zero but for the touched rows */
    unsigned char *touched; /* of each row of grad_tied; NULL: has none */
} tpi_param_internal;

tp_status tpi_param_create(tp_ctx *ctx, const tpi_param_desc *desc, tp_param **out);
void tpi_param_destroy(tp_ctx *ctx, tp_param *param);

const tpi_param_internal *tpi_param_internal_of(const tp_param *param);
void tpi_param_listen(tp_param *param, tpi_param_listener *listener);
void tpi_param_ignore(tp_param *param, const tpi_param_listener *listener);

/* Whether an optimizer keeps a master of it. */
bool tpi_param_has_master(const tp_param *param);

/* TP_OK if the parameter, or all `count` of a list, each once, are there and this context's; call: the public function,
 * for the message. */
tp_status tpi_param_check(tp_ctx *ctx, const char *call, const tp_param *param);
tp_status tpi_params_check(tp_ctx *ctx, const char *call, tp_param *const *params, int count);

/* Order of the inner sum when the value's rows (dim 0) or columns (dim 1) are summed over; NULL: one chain. */
const tpi_inner *tpi_param_order(const tp_param *param, int dim);

/* Packed copies that the optimizer writes along with the value; NULL: it has none. */
const tpi_weight_copies *tpi_param_copies(const tp_param *param);

/* to = from, or to += from: f32, on the compute stream. */
tp_status tpi_param_move(tp_ctx *ctx, const float *from, float *to, int64_t elements, bool accumulate);

/* Refreshes packed copies only. */
tp_status tpi_param_repack(tp_ctx *ctx, tp_param *param);

/* Whether the gradient's first product of this step overwrites it; to be told once that was issued. */
bool tpi_param_unset(const tp_param *param);
void tpi_param_was_set(tp_param *param);

/* Rows first + i of grad_tied are about to be added to, for all ids in host memory. */
void tpi_param_touch_rows(tp_param *param, const int32_t *ids, int64_t count, int64_t first);

/* Clears gradients that nothing was written to since tp_params_begin. */
tp_status tpi_params_settle(tp_ctx *ctx, tp_param *const *params, int count);

/* grad += grad_tied, where that may differ from zero. */
tp_status tpi_param_add_tied(tp_ctx *ctx, tp_param *param);

/* The order in which this rank's share of the parameter's elements enters norms (each element of the global tensor
 * once), along *dim. */
void tpi_param_norm_order(tp_ctx *ctx, const tp_param *param, int *dim, tpi_inner *out);

#endif
