/* Modules one after the other: activations between them live in saved memory, gradients in two buffers of scratch. */
#include <tp/model.h>

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "core/context.h"
#include "layers/pass_check.h"
#include "layers/head.h"
#include "layers/layer.h"
#include "models/build.h"

/* One module's place in a pass. */
typedef struct model_slot {
    void *saved;
    tp_tensor x, y; /* none for the first, for the last */
} model_slot;

struct tp_model {
    tp_ctx *ctx;
    bool described;
    tp_model_desc desc; /* if described */
    int count, param_count, param_capacity;
    tp_module *modules;
    model_slot *slots; /* of the pass at hand */
    tp_param **params;
    tp_dtype dtype;
    bool sequence_parallel;
    float *total;
};

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* The first slot of a module's table that was left empty, or NULL. */
static const char *empty_slot(const tp_module_table *table)
{
    const struct {
        const char *name;
        bool filled;
    } slots[] = {
        {"kind", table->kind != NULL},
        {"features", table->features != NULL},
        {"saved_bytes", table->saved_bytes != NULL},
        {"delayed_bytes", table->delayed_bytes != NULL},
        {"forward", table->forward != NULL},
        {"backward_input", table->backward_input != NULL},
        {"backward_weight", table->backward_weight != NULL},
        {"backward", table->backward != NULL},
        {"params", table->params != NULL},
        {"destroy", table->destroy != NULL},
    };
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (!slots[i].filled)
            return slots[i].name;
    return NULL;
}

static tp_status check_table(tp_ctx *ctx, const tp_compose_desc *desc, int index)
{
    const tp_module_table *table = desc->modules[index].table;
    if (table == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: module %d of %d has no table", index, desc->count);
    const char *empty = empty_slot(table);
    if (empty != NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: module %d of %d: slot %s of its table is NULL", index,
                          desc->count, empty);
    return TP_OK;
}

static tp_status check_compose(tp_ctx *ctx, const tp_compose_desc *desc)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (desc->count < 1 || desc->modules == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: count is %d, at least 1 module is needed", desc->count);
    TPI_TRY(tpi_layer_check_dtype(ctx, "model", desc->dtype));
    if (desc->total == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: total is NULL");
    for (int i = 0; i < desc->count; i++) {
        TPI_TRY(check_table(ctx, desc, i));
        int64_t features = desc->modules[i].table->features(desc->modules[i].self);
        if ((features < 1) != (i == desc->count - 1))
            return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                              "model: module %d of %d has %" PRId64 " features; only the last, the head, has 0", i,
                              desc->count, features);
    }
    return TP_OK;
}

static bool listed(const tp_model *model, const tp_param *param)
{
    for (int i = 0; i < model->param_count; i++)
        if (model->params[i] == param)
            return true;
    return false;
}

/* A borrowed weight (tied head) is listed once, where it comes first. */
static void list_params(tp_model *model, tp_param **found, int capacity)
{
    for (int i = 0; i < model->count; i++) {
        int here = model->modules[i].table->params(model->modules[i].self, found, capacity);
        for (int p = 0; p < here; p++)
            if (!listed(model, found[p]))
                model->params[model->param_count++] = found[p];
    }
}

static tp_status collect_params(tp_model *model)
{
    int capacity = 1;
    for (int i = 0; i < model->count; i++) {
        int here = model->modules[i].table->params(model->modules[i].self, NULL, 0);
        if (here < 0 || here > INT_MAX - capacity)
            return tpi_refuse(model->ctx, TP_ERR_ARGUMENT, "model: module %d of %d has %d parameters, must be 0 to %d",
                              i, model->count, here, INT_MAX - capacity);
        capacity += here;
    }
    size_t bytes = (size_t)capacity * sizeof *model->params;
    model->params = tpi_host_allocate(model->ctx, bytes);
    tp_param **found = tpi_host_allocate(model->ctx, bytes);
    model->param_capacity = capacity;
    if (model->params != NULL && found != NULL)
        list_params(model, found, capacity);
    tp_status status =
        model->params != NULL && found != NULL
            ? TP_OK
            : tpi_refuse(model->ctx, TP_ERR_MEMORY, "model: no memory for a list of %d parameters", capacity);
    if (found != NULL)
        tpi_host_release(model->ctx, found, bytes);
    return status;
}

static tp_status fill_model(tp_model *model, const tp_compose_desc *desc)
{
    tp_ctx *ctx = model->ctx;
    size_t length = (size_t)desc->count;
    model->dtype = desc->dtype;
    model->sequence_parallel = desc->sequence_parallel;
    model->total = desc->total;
    model->count = desc->count;
    model->modules = tpi_host_allocate(ctx, length * sizeof *model->modules);
    model->slots = tpi_host_allocate(ctx, length * sizeof *model->slots);
    if (model->modules == NULL || model->slots == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "model: no memory for a list of %d modules", desc->count);
    memcpy(model->modules, desc->modules, length * sizeof *model->modules);
    TPI_TRY(collect_params(model));
    return tpi_model_loss_reset(ctx, model);
}

static void release_lists(tp_model *model)
{
    tp_ctx *ctx = model->ctx;
    size_t length = (size_t)model->count;
    if (model->params != NULL)
        tpi_host_release(ctx, model->params, (size_t)model->param_capacity * sizeof *model->params);
    if (model->modules != NULL)
        tpi_host_release(ctx, model->modules, length * sizeof *model->modules);
    if (model->slots != NULL)
        tpi_host_release(ctx, model->slots, length * sizeof *model->slots);
    tpi_host_release(ctx, model, sizeof *model);
}

static tp_status compose(tp_ctx *ctx, const tp_compose_desc *desc, tp_model **out)
{
    TPI_TRY(check_compose(ctx, desc));
    tp_model *model = tpi_host_allocate(ctx, sizeof *model);
    if (model == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "model: out of memory");
    model->ctx = ctx;
    tp_status status = fill_model(model, desc);
    if (status != TP_OK) {
        release_lists(model);
        return status;
    }
    *out = model;
    return TP_OK;
}

tp_status tp_model_compose(tp_ctx *ctx, const tp_compose_desc *desc, tp_model **out)
{
    TPI_TRY(tpi_given(ctx, "tp_model_compose: desc", desc));
    tp_status status = tpi_given(ctx, "tp_model_compose: out", out);
    if (status == TP_OK) {
        *out = NULL;
        status = compose(ctx, desc, out);
    }
    if (status != TP_OK && desc->modules != NULL)
        for (int i = desc->count - 1; i >= 0; i--)
            if (desc->modules[i].table != NULL && desc->modules[i].table->destroy != NULL)
                desc->modules[i].table->destroy(desc->modules[i].self);
    return status;
}

void tpi_model_adopt(tp_model *model, const tp_model_desc *desc)
{
    model->described = true;
    model->desc = *desc;
}

const tp_model_desc *tpi_model_desc_of(const tp_model *model)
{
    return model->described ? &model->desc : NULL;
}

const tp_ctx *tpi_model_ctx(const tp_model *model)
{
    return model != NULL ? model->ctx : NULL;
}

void tp_model_destroy(tp_model *model)
{
    if (model == NULL)
        return;
    tp_ctx_synchronize(model->ctx);
    for (int i = model->count - 1; i >= 0; i--) /* the head may borrow the embedding's table */
        model->modules[i].table->destroy(model->modules[i].self);
    if (model->described)
        tp_ctx_release(model->ctx, TP_MEMORY_OTHER, model->total, TPI_MODEL_TOTAL_BYTES);
    release_lists(model);
}

/* ---- looking at it ----------------------------------------------------------------------------------------------- */

tp_param *const *tp_model_params(const tp_model *model, int *count)
{
    *count = model->param_count;
    return model->params;
}

tp_param *tp_model_param(const tp_model *model, const char *name)
{
    for (int i = 0; i < model->param_count; i++)
        if (strcmp(model->params[i]->name, name) == 0)
            return model->params[i];
    return NULL;
}

const tp_module *tp_model_modules(const tp_model *model, int *count)
{
    *count = model->count;
    return model->modules;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static int64_t features_of(const tp_model *model, int index)
{
    return model->modules[index].table->features(model->modules[index].self);
}

static tp_tensor activation(const tp_model *model, const tp_pass *pass, int index, void *memory)
{
    tp_range mine = tp_pass_rows(model->ctx, pass, model->sequence_parallel);
    return tp_tensor_2d(memory, model->dtype, mine.end - mine.begin, features_of(model, index));
}

static void *place_in(void *memory, size_t at)
{
    return memory != NULL ? (char *)memory + at : NULL;
}

/* Saved memory is, module by module, what the module saves and then its output. Fills the slots unless `saved` is NULL;
 * returns the bytes. */
static size_t lay_out(const tp_model *model, const tp_pass *pass, void *saved)
{
    size_t at = 0;
    tp_tensor x = tp_tensor_none();
    for (int i = 0; i < model->count; i++) {
        const tp_module *module = &model->modules[i];
        model_slot slot = {.saved = place_in(saved, at), .x = x};
        at = tpi_bytes_sum(at, tpi_bytes_aligned(module->table->saved_bytes(module->self, pass)));
        if (i < model->count - 1) {
            slot.y = activation(model, pass, i, place_in(saved, at));
            at = tpi_bytes_sum(at, tpi_bytes_aligned(tp_tensor_bytes(slot.y)));
        }
        x = slot.y;
        if (saved != NULL)
            model->slots[i] = slot;
    }
    return at;
}

size_t tp_model_saved_bytes(const tp_model *model, const tp_pass *pass)
{
    return lay_out(model, pass, NULL);
}

/* What modules would refuse in the middle of a pass is refused before it. */
static tp_status check_call(tp_ctx *ctx, const tp_model *model, const tp_pass *pass)
{
    TPI_TRY_OBJECT(ctx, "model", model);
    TPI_TRY(tpi_pass_check(ctx, pass));
    if (!model->described)
        return TP_OK;
    int64_t longest = tpi_pass_longest(pass);
    if (longest > model->desc.positions)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "pass: a sequence of %" PRId64 " tokens is longer than positions %" PRId64, longest,
                          model->desc.positions);
    int64_t vocabulary = model->desc.vocabulary;
    TPI_TRY(tpi_pass_check_ids(ctx, &(tpi_pass_ids){"ids", "vocabulary", pass->ids, pass->tokens, 0, vocabulary}));
    return tpi_pass_check_ids(
        ctx, &(tpi_pass_ids){"targets", "vocabulary", pass->targets, pass->tokens, INT32_MIN, vocabulary});
}

static tp_status check_saved(tp_ctx *ctx, const void *saved)
{
    if ((uintptr_t)saved % 64 != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: saved at %p is not aligned to 64 bytes", saved);
    return TP_OK;
}

static tp_status forward_module(tp_ctx *ctx, const tp_model *model, const tp_pass *pass, int index,
                                const model_slot *slot)
{
    const tp_module *module = &model->modules[index];
    return module->table->forward(ctx, module->self, pass, slot->x, slot->y, slot->saved);
}

/* Two buffers for whatever activation is the largest. */
static tp_status take_buffers(tp_ctx *ctx, const tp_model *model, const tp_pass *pass, void *buffer[2])
{
    size_t bytes = 0;
    for (int i = 0; i < model->count - 1; i++) {
        size_t here = tp_tensor_bytes(activation(model, pass, i, NULL));
        bytes = here > bytes ? here : bytes;
    }
    for (int i = 0; i < 2; i++)
        TPI_TRY(tpi_scratch(ctx, bytes, &buffer[i]));
    return TP_OK;
}

static tp_status forward_only(tp_ctx *ctx, const tp_model *model, const tp_pass *pass)
{
    void *buffer[2];
    TPI_TRY(take_buffers(ctx, model, pass, buffer));
    model_slot slot = {0};
    for (int i = 0; i < model->count; i++) {
        slot.x = slot.y;
        slot.y = i < model->count - 1 ? activation(model, pass, i, buffer[i % 2]) : tp_tensor_none();
        TPI_TRY(forward_module(ctx, model, pass, i, &slot));
    }
    return TP_OK;
}

tp_status tp_model_forward(tp_ctx *ctx, tp_model *model, const tp_pass *pass, void *saved)
{
    TPI_TRY(check_call(ctx, model, pass));
    TPI_TRY(check_saved(ctx, saved));
    if (saved == NULL) {
        tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
        tp_status status = forward_only(ctx, model, pass);
        tpi_arena_release(&ctx->scratch, mark);
        return status;
    }
    lay_out(model, pass, saved);
    for (int i = 0; i < model->count; i++)
        TPI_TRY(forward_module(ctx, model, pass, i, &model->slots[i]));
    return TP_OK;
}

static tp_status backward_modules(tp_ctx *ctx, const tp_model *model, const tp_pass *pass)
{
    void *buffer[2];
    TPI_TRY(take_buffers(ctx, model, pass, buffer));
    tp_tensor gradient = tp_tensor_none();
    for (int i = model->count - 1; i >= 0; i--) {
        const tp_module *module = &model->modules[i];
        tp_io io = {.in = gradient};
        if (i > 0)
            io.out = activation(model, pass, i - 1, buffer[i % 2]);
        TPI_TRY(module->table->backward(ctx, module->self, pass, &io, model->slots[i].saved));
        gradient = io.out;
    }
    return TP_OK;
}

tp_status tp_model_backward(tp_ctx *ctx, tp_model *model, const tp_pass *pass, void *saved)
{
    TPI_TRY(check_call(ctx, model, pass));
    if (saved == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: saved is NULL, backward needs %zu bytes",
                          tp_model_saved_bytes(model, pass));
    TPI_TRY(check_saved(ctx, saved));
    lay_out(model, pass, saved);
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = backward_modules(ctx, model, pass);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tpi_model_loss_reset(tp_ctx *ctx, tp_model *model)
{
    return tpi_map(ctx->compute, &(tpi_map_args){.rows = 1,
                                                 .cols = 2,
                                                 .in_dtype = TP_DTYPE_F32,
                                                 .in_stride = 2,
                                                 .out = model->total,
                                                 .out_dtype = TP_DTYPE_F32,
                                                 .out_stride = 2});
}

tp_status tp_model_loss(tp_ctx *ctx, tp_model *model, double *sum, double *tokens)
{
    TPI_TRY_OBJECT(ctx, "tp_model_loss: model", model);
    TPI_TRY(tpi_given(ctx, "tp_model_loss: sum", sum));
    TPI_TRY(tpi_given(ctx, "tp_model_loss: tokens", tokens));
    float total[2];
    TPI_TRY(tp_ctx_download(ctx, total, model->total, sizeof total));
    TPI_TRY(tp_ctx_synchronize(ctx)); /* other lanes' failures too */
    *sum = total[0];
    *tokens = total[1];
    return tpi_model_loss_reset(ctx, model);
}

tp_status tp_model_logits(const tp_model *model, const void *saved, const tp_pass *pass, tp_tensor *out)
{
    TPI_TRY(tpi_given(NULL, "tp_model_logits: model", model));
    TPI_TRY(tpi_given(model->ctx, "tp_model_logits: out", out));
    TPI_TRY(tpi_pass_check(model->ctx, pass));
    int head = model->count - 1;
    size_t bytes = tpi_bytes_aligned(model->modules[head].table->saved_bytes(model->modules[head].self, pass));
    const char *place = (const char *)saved + tp_model_saved_bytes(model, pass) - bytes;
    if (saved == NULL || !tpi_head_logits(&model->modules[head], place, out))
        return tpi_refuse(model->ctx, TP_ERR_STATE, "model: no logits: %s",
                          saved == NULL ? "saved is NULL" : "no forward filled saved, or the head is not ours");
    return TP_OK;
}
