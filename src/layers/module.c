/* Our layers behind the module table. A module's saved memory is what its layer's saved struct points to; the struct is
 * the host's record of it. */
#include <tp/module.h>

#include <string.h>

#include "layers/record.h"

enum { MOST_PARAMS = 64 };

/* Never none: its address names the record. */
static size_t some_bytes(size_t bytes)
{
    return tpi_bytes_aligned(bytes > 0 ? bytes : 1);
}

static tp_status check_creation(tp_ctx *ctx, const char *call, const void *desc, tp_module *out)
{
    if (out == NULL || desc == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s is NULL", call, out == NULL ? "out" : "desc");
    *out = (tp_module){0};
    return TP_OK;
}

static tp_status new_module(tp_ctx *ctx, size_t bytes, const char *kind, void **out)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    *out = tpi_host_allocate(ctx, bytes);
    if (*out == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "%s module: out of memory", kind);
    return TP_OK;
}

/* ---- block ------------------------------------------------------------------------------------------------------- */

typedef struct block_module {
    tp_ctx *ctx;
    tp_block *layer;
    int64_t features;
    tpi_records saved, delayed;
} block_module;

static int64_t block_features(const void *self)
{
    return ((const block_module *)self)->features;
}

static size_t block_saved_bytes(const void *self, const tp_pass *pass)
{
    return some_bytes(tp_block_saved_bytes(((const block_module *)self)->layer, pass));
}

static size_t block_delayed_bytes(const void *self, const tp_pass *pass)
{
    return some_bytes(tp_block_delayed_bytes(((const block_module *)self)->layer, pass));
}

static tp_status block_forward(tp_ctx *ctx, void *self, const tp_pass *pass, tp_tensor x, tp_tensor y, void *memory)
{
    block_module *module = self;
    tp_io io = {.in = x, .out = y};
    if (memory == NULL)
        return tp_block_forward(ctx, module->layer, pass, &io, NULL);
    void *record;
    TPI_TRY(tpi_record_make(&module->saved, memory, &record));
    tp_block_saved *saved = record;
    *saved = (tp_block_saved){.memory = memory, .bytes = tp_block_saved_bytes(module->layer, pass)};
    return tp_block_forward(ctx, module->layer, pass, &io, saved);
}

static tp_status block_backward_input(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved,
                                      void *memory)
{
    block_module *module = self;
    void *record, *later;
    TPI_TRY(tpi_record_find(&module->saved, saved, &record));
    TPI_TRY(tpi_record_make(&module->delayed, memory, &later));
    tp_block_delayed *delayed = later;
    *delayed = (tp_block_delayed){.memory = memory, .bytes = tp_block_delayed_bytes(module->layer, pass)};
    return tp_block_backward_input(ctx, module->layer, pass, io, record, delayed);
}

static tp_status block_backward_weight(tp_ctx *ctx, void *self, const tp_pass *pass, void *saved, void *delayed)
{
    const block_module *module = self;
    void *record, *later;
    TPI_TRY(tpi_record_find(&module->saved, saved, &record));
    TPI_TRY(tpi_record_find(&module->delayed, delayed, &later));
    return tp_block_backward_weight(ctx, module->layer, pass, record, later);
}

static tp_status block_backward(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved)
{
    const block_module *module = self;
    void *record;
    TPI_TRY(tpi_record_find(&module->saved, saved, &record));
    return tp_block_backward(ctx, module->layer, pass, io, record);
}

static int block_params(void *self, tp_param **out, int capacity)
{
    return tp_block_params(((block_module *)self)->layer, out, capacity);
}

static void block_destroy(void *self)
{
    block_module *module = self;
    tp_block_destroy(module->layer);
    tpi_records_free(&module->saved);
    tpi_records_free(&module->delayed);
    tpi_host_release(module->ctx, module, sizeof *module);
}

static const tp_module_table block_table = {.kind = "block",
                                            .features = block_features,
                                            .saved_bytes = block_saved_bytes,
                                            .delayed_bytes = block_delayed_bytes,
                                            .forward = block_forward,
                                            .backward_input = block_backward_input,
                                            .backward_weight = block_backward_weight,
                                            .backward = block_backward,
                                            .params = block_params,
                                            .destroy = block_destroy};

tp_status tp_module_block(tp_ctx *ctx, const tp_block_desc *desc, tp_module *out)
{
    void *memory;
    TPI_TRY(check_creation(ctx, "tp_module_block", desc, out));
    TPI_TRY(new_module(ctx, sizeof(block_module), "block", &memory));
    block_module *module = memory;
    *module = (block_module){.ctx = ctx,
                              .saved = {.ctx = ctx, .bytes = sizeof(tp_block_saved)},
                              .delayed = {.ctx = ctx, .bytes = sizeof(tp_block_delayed)},
                              .features = desc->hidden};
    tp_status status = tp_block_create(ctx, desc, &module->layer);
    if (status != TP_OK) {
        tpi_host_release(ctx, module, sizeof *module);
        return status;
    }
    *out = (tp_module){&block_table, module};
    return TP_OK;
}

/* ---- norm -------------------------------------------------------------------------------------------------------- */

typedef struct norm_module {
    tp_ctx *ctx;
    tp_norm *layer;
    int64_t features;
    tpi_records saved, delayed;
} norm_module;

static int64_t norm_features(const void *self)
{
    return ((const norm_module *)self)->features;
}

static size_t norm_saved_bytes(const void *self, const tp_pass *pass)
{
    return some_bytes(tp_norm_saved_bytes(((const norm_module *)self)->layer, pass));
}

static size_t norm_delayed_bytes(const void *self, const tp_pass *pass)
{
    (void)self;
    (void)pass;
    return some_bytes(0);
}

static tp_status norm_forward(tp_ctx *ctx, void *self, const tp_pass *pass, tp_tensor x, tp_tensor y, void *memory)
{
    norm_module *module = self;
    tp_io io = {.in = x, .out = y};
    if (memory == NULL)
        return tp_norm_forward(ctx, module->layer, pass, &io, NULL);
    void *record;
    TPI_TRY(tpi_record_make(&module->saved, memory, &record));
    tp_norm_saved *saved = record;
    *saved = (tp_norm_saved){.memory = memory, .bytes = tp_norm_saved_bytes(module->layer, pass)};
    return tp_norm_forward(ctx, module->layer, pass, &io, saved);
}

static tp_status norm_backward_input(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved,
                                     void *delayed)
{
    norm_module *module = self;
    void *record, *later;
    TPI_TRY(tpi_record_find(&module->saved, saved, &record));
    TPI_TRY(tpi_record_make(&module->delayed, delayed, &later));
    return tp_norm_backward_input(ctx, module->layer, pass, io, record, later);
}

static tp_status norm_backward_weight(tp_ctx *ctx, void *self, const tp_pass *pass, void *saved, void *delayed)
{
    const norm_module *module = self;
    void *record, *later;
    TPI_TRY(tpi_record_find(&module->saved, saved, &record));
    TPI_TRY(tpi_record_find(&module->delayed, delayed, &later));
    return tp_norm_backward_weight(ctx, module->layer, pass, record, later);
}

static tp_status norm_backward(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved)
{
    const norm_module *module = self;
    void *record;
    TPI_TRY(tpi_record_find(&module->saved, saved, &record));
    return tp_norm_backward(ctx, module->layer, pass, io, record);
}

static int norm_params(void *self, tp_param **out, int capacity)
{
    return tp_norm_params(((norm_module *)self)->layer, out, capacity);
}

static void norm_destroy(void *self)
{
    norm_module *module = self;
    tp_norm_destroy(module->layer);
    tpi_records_free(&module->saved);
    tpi_records_free(&module->delayed);
    tpi_host_release(module->ctx, module, sizeof *module);
}

static const tp_module_table norm_table = {.kind = "norm",
                                           .features = norm_features,
                                           .saved_bytes = norm_saved_bytes,
                                           .delayed_bytes = norm_delayed_bytes,
                                           .forward = norm_forward,
                                           .backward_input = norm_backward_input,
                                           .backward_weight = norm_backward_weight,
                                           .backward = norm_backward,
                                           .params = norm_params,
                                           .destroy = norm_destroy};

tp_status tp_module_norm(tp_ctx *ctx, const tp_norm_desc *desc, tp_module *out)
{
    void *memory;
    TPI_TRY(check_creation(ctx, "tp_module_norm", desc, out));
    TPI_TRY(new_module(ctx, sizeof(norm_module), "norm", &memory));
    norm_module *module = memory;
    *module = (norm_module){.ctx = ctx,
                              .saved = {.ctx = ctx, .bytes = sizeof(tp_norm_saved)},
                              .delayed = {.ctx = ctx, .bytes = sizeof(tp_norm_delayed)},
                              .features = desc->features};
    tp_status status = tp_norm_create(ctx, desc, &module->layer);
    if (status != TP_OK) {
        tpi_host_release(ctx, module, sizeof *module);
        return status;
    }
    *out = (tp_module){&norm_table, module};
    return TP_OK;
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

typedef struct embedding_module {
    tp_ctx *ctx;
    tp_embedding *layer;
    int64_t features;
    tpi_records delayed;
} embedding_module;

/* The table's gradient is a weight gradient: backward_input has nothing to do but to remember dy, which must stay. */
typedef struct embedding_delayed {
    tp_tensor dy;
} embedding_delayed;

static int64_t embedding_features(const void *self)
{
    return ((const embedding_module *)self)->features;
}

static size_t embedding_saved_bytes(const void *self, const tp_pass *pass)
{
    (void)self;
    (void)pass;
    return 0;
}

static size_t embedding_delayed_bytes(const void *self, const tp_pass *pass)
{
    (void)self;
    (void)pass;
    return some_bytes(0);
}

static tp_status embedding_forward(tp_ctx *ctx, void *self, const tp_pass *pass, tp_tensor x, tp_tensor y, void *saved)
{
    (void)x;
    (void)saved;
    return tp_embedding_forward(ctx, ((embedding_module *)self)->layer, pass, y);
}

static tp_status embedding_backward_input(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved,
                                          void *delayed)
{
    (void)ctx;
    (void)pass;
    (void)saved;
    void *record;
    TPI_TRY(tpi_record_make(&((embedding_module *)self)->delayed, delayed, &record));
    *(embedding_delayed *)record = (embedding_delayed){io->in};
    return TP_OK;
}

static tp_status embedding_backward_weight(tp_ctx *ctx, void *self, const tp_pass *pass, void *saved, void *delayed)
{
    (void)saved;
    const embedding_module *module = self;
    void *record;
    TPI_TRY(tpi_record_find(&module->delayed, delayed, &record));
    return tp_embedding_backward(ctx, module->layer, pass, ((embedding_delayed *)record)->dy);
}

static tp_status embedding_backward(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved)
{
    (void)saved;
    return tp_embedding_backward(ctx, ((embedding_module *)self)->layer, pass, io->in);
}

static int embedding_params(void *self, tp_param **out, int capacity)
{
    return tp_embedding_params(((embedding_module *)self)->layer, out, capacity);
}

static void embedding_destroy(void *self)
{
    embedding_module *module = self;
    tp_embedding_destroy(module->layer);
    tpi_records_free(&module->delayed);
    tpi_host_release(module->ctx, module, sizeof *module);
}

static const tp_module_table embedding_table = {.kind = "embedding",
                                                .features = embedding_features,
                                                .saved_bytes = embedding_saved_bytes,
                                                .delayed_bytes = embedding_delayed_bytes,
                                                .forward = embedding_forward,
                                                .backward_input = embedding_backward_input,
                                                .backward_weight = embedding_backward_weight,
                                                .backward = embedding_backward,
                                                .params = embedding_params,
                                                .destroy = embedding_destroy};

tp_status tp_module_embedding(tp_ctx *ctx, const tp_embedding_desc *desc, tp_module *out)
{
    void *memory;
    TPI_TRY(check_creation(ctx, "tp_module_embedding", desc, out));
    TPI_TRY(new_module(ctx, sizeof(embedding_module), "embedding", &memory));
    embedding_module *module = memory;
    *module = (embedding_module){.ctx = ctx, .delayed = {.ctx = ctx, .bytes = sizeof(embedding_delayed)},
                                 .features = desc->features};
    tp_status status = tp_embedding_create(ctx, desc, &module->layer);
    if (status != TP_OK) {
        tpi_host_release(ctx, module, sizeof *module);
        return status;
    }
    *out = (tp_module){&embedding_table, module};
    return TP_OK;
}

tp_param *tp_module_param(const tp_module *module, const char *name)
{
    tp_param *params[MOST_PARAMS];
    int count = module->table->params(module->self, params, MOST_PARAMS);
    for (int i = 0; i < count && i < MOST_PARAMS; i++)
        if (strcmp(params[i]->name, name) == 0)
            return params[i];
    return NULL;
}
