/* What a model is made of. A module turns [tokens here, features] into the same of the next module; a user's own drops
 * in beside ours by filling the table. Pipelines and trainers know modules, not layers. */
#ifndef TP_MODULE_H
#define TP_MODULE_H

#include <tp/block.h>
#include <tp/embedding.h>
#include <tp/loss.h>

/* self: the module's own object. x, y: its input and output; the first module gets no x and reads pass->ids; the last
 * one (a loss) gets no y. saved and delayed: memory of saved_bytes / delayed_bytes, 64-byte aligned; saved NULL:
 * forward only. Every slot must be filled. */
typedef struct tp_module_table {
    const char *kind;
    int64_t (*features)(const void *self); /* of y; 0: no y */
    size_t (*saved_bytes)(const void *self, const tp_pass *pass);
    size_t (*delayed_bytes)(const void *self, const tp_pass *pass);
    tp_status (*forward)(tp_ctx *ctx, void *self, const tp_pass *pass, tp_tensor x, tp_tensor y, void *saved);
    tp_status (*backward_input)(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved,
                                void *delayed);
    tp_status (*backward_weight)(tp_ctx *ctx, void *self, const tp_pass *pass, void *saved, void *delayed);
    /* both, in scratch */
    tp_status (*backward)(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved);
    int (*params)(void *self, tp_param **out, int capacity);
    void (*destroy)(void *self);
} tp_module_table;

typedef struct tp_module {
    const tp_module_table *table;
    void *self;
} tp_module;

TP_BEGIN_DECLS

/* Our layers as modules. A module owns the layer that it wraps: its destroy frees both. */
TP_API tp_status tp_module_block(tp_ctx *ctx, const tp_block_desc *desc, tp_module *out);
TP_API tp_status tp_module_norm(tp_ctx *ctx, const tp_norm_desc *desc, tp_module *out);
TP_API tp_status tp_module_embedding(tp_ctx *ctx, const tp_embedding_desc *desc, tp_module *out);
/* Head (column linear over the vocabulary) and cross-entropy. weight: the embedding's table (tied), or NULL. total: f32
 * [2] in device memory. */
TP_API tp_status tp_module_head(tp_ctx *ctx, const tp_linear_desc *head, const tp_cross_entropy_desc *loss,
                                float *total, tp_module *out);

/* The parameter with that name, or NULL. */
TP_API tp_param *tp_module_param(const tp_module *module, const char *name);

TP_END_DECLS
#endif
