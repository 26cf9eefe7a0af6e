/* Modules: a caller's own beside ours, and weight gradients put off. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/trainer.h>
#include <unistd.h>

#include "support/data.h"
#include "support/training.h"

enum { SEQUENCES = 2, SEQUENCE = 7, TOKENS = SEQUENCES * SEQUENCE, HIDDEN = 16, VOCABULARY = 29, MOST_MODULES = 8 };

/* ---- a module that copies: a model with it must compute what it computes without --------------------------------- */

typedef struct copy_module {
    tp_dtype dtype;
    int forwards, backwards;
    int *destroyed;
} copy_module;

static int64_t copy_features(const void *self)
{
    (void)self;
    return HIDDEN;
}

static size_t copy_bytes(const void *self, const tp_pass *pass)
{
    (void)self;
    (void)pass;
    return 0;
}

static tp_status copy_forward(tp_ctx *ctx, void *self, const tp_pass *pass, tp_tensor x, tp_tensor y, void *saved)
{
    (void)pass;
    (void)saved;
    ((copy_module *)self)->forwards++;
    tp_status status = tp_ctx_synchronize(ctx);
    memcpy(y.data, x.data, tp_tensor_bytes(x));
    return status;
}

static tp_status copy_backward(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved)
{
    (void)pass;
    (void)saved;
    ((copy_module *)self)->backwards++;
    tp_status status = tp_ctx_synchronize(ctx);
    memcpy(io->out.data, io->in.data, tp_tensor_bytes(io->in));
    return status;
}

static tp_status copy_backward_input(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved,
                                     void *delayed)
{
    (void)delayed;
    return copy_backward(ctx, self, pass, io, saved);
}

static tp_status copy_backward_weight(tp_ctx *ctx, void *self, const tp_pass *pass, void *saved, void *delayed)
{
    (void)ctx;
    (void)self;
    (void)pass;
    (void)saved;
    (void)delayed;
    return TP_OK;
}

static int copy_params(void *self, tp_param **out, int capacity)
{
    (void)self;
    (void)out;
    (void)capacity;
    return 0;
}

static void copy_destroy(void *self)
{
    ++*((copy_module *)self)->destroyed;
}

static const tp_module_table copy_table = {.kind = "copy",
                                           .features = copy_features,
                                           .saved_bytes = copy_bytes,
                                           .delayed_bytes = copy_bytes,
                                           .forward = copy_forward,
                                           .backward_input = copy_backward_input,
                                           .backward_weight = copy_backward_weight,
                                           .backward = copy_backward,
                                           .params = copy_params,
                                           .destroy = copy_destroy};

/* ---- models made by hand ----------------------------------------------------------------------------------------- */

typedef struct made {
    bool with_copy, sequence_parallel, delayed;
    float *grads; /* of all parameters, in order; rank 0's */
    int64_t elements;
    double loss;
    int destroyed;
} made;

static tp_status add_block(tp_ctx *ctx, bool sequence_parallel, tp_module *out)
{
    tp_block_desc block = {.name = "h.0",
                           .hidden = HIDDEN,
                           .dtype = TP_DTYPE_F32,
                           .sequence_parallel = sequence_parallel,
                           .layer = 1,
                           .attention = {.heads = 4, .bias = true},
                           .mlp = {.ffn = 23, .bias = true}};
    return tp_module_block(ctx, &block, out);
}

static tp_status make_modules(tp_ctx *ctx, const made *m, copy_module *copy, float *total, tp_module *modules,
                              int *count)
{
    tp_embedding_desc embedding = {.name = "wte",
                                   .vocabulary = VOCABULARY,
                                   .features = HIDDEN,
                                   .positions = SEQUENCE,
                                   .dtype = TP_DTYPE_F32,
                                   .tied = true,
                                   .sequence_parallel = m->sequence_parallel};
    tp_status status = tp_module_embedding(ctx, &embedding, &modules[(*count)++]);
    if (status == TP_OK)
        status = add_block(ctx, m->sequence_parallel, &modules[(*count)++]);
    if (m->with_copy)
        modules[(*count)++] = (tp_module){&copy_table, copy};
    tp_norm_desc norm = {
        .name = "norm", .features = HIDDEN, .dtype = TP_DTYPE_F32, .sequence_parallel = m->sequence_parallel};
    if (status == TP_OK)
        status = tp_module_norm(ctx, &norm, &modules[(*count)++]);
    tp_linear_desc head = {.name = "head",
                           .kind = TP_LINEAR_COLUMN,
                           .in_features = HIDDEN,
                           .out_features = VOCABULARY,
                           .dtype = TP_DTYPE_F32,
                           .sequence_parallel = m->sequence_parallel};
    tp_cross_entropy_desc loss = {.vocabulary = VOCABULARY};
    if (status == TP_OK)
        head.weight = tp_module_param(&modules[0], "wte.weight");
    return status == TP_OK ? tp_module_head(ctx, &head, &loss, total, &modules[(*count)++]) : status;
}

static void *pieces[MOST_MODULES * 4]; /* memory of the pass at hand; one rank uses it */

/* Backward by hand: all input gradients first, weight gradients after all of them, in another order. */
static tp_status backward_delayed(tp_ctx *ctx, const tp_module *modules, int count, const tp_pass *pass, void **saved)
{
    tp_tensor gradient[MOST_MODULES + 1] = {{0}};
    for (int i = count - 1; i >= 0; i--) {
        const tp_module *module = &modules[i];
        pieces[i] = tpt_allocate(module->table->delayed_bytes(module->self, pass));
        pieces[MOST_MODULES + i] = tpt_array(TP_DTYPE_F32, TOKENS * HIDDEN);
        tp_io io = {.in = gradient[i + 1]};
        if (i > 0)
            io.out = gradient[i] = tp_tensor_2d(pieces[MOST_MODULES + i], TP_DTYPE_F32, TOKENS, HIDDEN);
        tp_status status = module->table->backward_input(ctx, module->self, pass, &io, saved[i], pieces[i]);
        if (status != TP_OK)
            return status;
    }
    for (int i = 0; i < count; i++) {
        tp_status status = modules[i].table->backward_weight(ctx, modules[i].self, pass, saved[i], pieces[i]);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

static tp_status step_by_hand(tp_ctx *ctx, const tp_module *modules, int count, const tp_pass *pass)
{
    void *saved[MOST_MODULES] = {NULL};
    tp_tensor x = tp_tensor_none();
    tp_status status = TP_OK;
    for (int i = 0; i < count && status == TP_OK; i++) {
        saved[i] = pieces[2 * MOST_MODULES + i] = tpt_allocate(modules[i].table->saved_bytes(modules[i].self, pass));
        pieces[3 * MOST_MODULES + i] = tpt_array(TP_DTYPE_F32, TOKENS * HIDDEN);
        tp_tensor y =
            i < count - 1 ? tp_tensor_2d(pieces[3 * MOST_MODULES + i], TP_DTYPE_F32, TOKENS, HIDDEN) : tp_tensor_none();
        status = modules[i].table->forward(ctx, modules[i].self, pass, x, y, saved[i]);
        x = y;
    }
    if (status == TP_OK)
        status = backward_delayed(ctx, modules, count, pass, saved);
    for (int i = 0; i < 4 * MOST_MODULES; i++) {
        free(pieces[i]);
        pieces[i] = NULL;
    }
    return status;
}

static tp_status step_of_model(tp_ctx *ctx, tp_model *model, const tp_pass *pass)
{
    void *saved = tpt_allocate(tp_model_saved_bytes(model, pass));
    tp_status status = tp_model_forward(ctx, model, pass, saved);
    if (status == TP_OK)
        status = tp_model_backward(ctx, model, pass, saved);
    free(saved);
    return status;
}

static tp_status collect(tp_ctx *ctx, made *m, tp_model *model)
{
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    tp_status status = tp_params_finish(ctx, params, count);
    float *grads = tpt_array(TP_DTYPE_F32, 1 << 16);
    int64_t at = 0;
    for (int i = 0; i < count && status == TP_OK; i++) {
        status = tp_param_gather(ctx, params[i], 1, grads + at);
        at += tp_param_elements(params[i]);
    }
    double loss, tokens;
    if (status == TP_OK)
        status = tp_model_loss(ctx, model, &loss, &tokens);
    if (status != TP_OK || tp_ctx_rank(ctx) != 0) {
        free(grads);
        return status;
    }
    m->loss = loss;
    m->grads = grads;
    m->elements = at;
    return TP_OK;
}

static tp_status step(tp_ctx *ctx, made *m, tp_model *model)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, VOCABULARY, 0);
    tp_pass pass = {.tokens = TOKENS, .sequences = SEQUENCES, .ids = ids, .targets = targets};
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    tp_status status = tp_params_init(ctx, params, count);
    const tp_module *modules = tp_model_modules(model, &count);
    if (status == TP_OK)
        status = m->delayed ? step_by_hand(ctx, modules, count, &pass) : step_of_model(ctx, model, &pass);
    return status == TP_OK ? collect(ctx, m, model) : status;
}

static tp_status made_main(tp_ctx *ctx, void *arg)
{
    made *m = arg;
    int destroyed = 0, count = 0;
    float total[2];
    copy_module copy = {.dtype = TP_DTYPE_F32, .destroyed = &destroyed};
    tp_module modules[MOST_MODULES];
    tp_model *model;
    tp_status status = make_modules(ctx, m, &copy, total, modules, &count);
    tp_compose_desc desc = {.modules = modules,
                            .count = count,
                            .dtype = TP_DTYPE_F32,
                            .sequence_parallel = m->sequence_parallel,
                            .total = total};
    if (status == TP_OK)
        status = tp_model_compose(ctx, &desc, &model);
    if (status != TP_OK)
        return status;
    status = step(ctx, m, model);
    tp_model_destroy(model);
    if (m->with_copy && (copy.forwards != 1 || copy.backwards != 1 || destroyed != 1))
        return TP_ERR_INTERNAL;
    return status;
}

static made run_made(made m, int ranks)
{
    tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .seed = 8}};
    cr_assert_eq(tp_run_ranks(&options, made_main, &m), TP_OK, "%s", tp_last_message());
    return m;
}

static void check_same(made *a, made *b)
{
    cr_assert_eq(a->loss, b->loss);
    cr_assert_eq(a->elements, b->elements);
    cr_assert(tpt_same_bits("gradients", a->grads, b->grads, TP_DTYPE_F32, a->elements));
    free(a->grads);
    free(b->grads);
}

Test(module, a_module_of_the_callers_own)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int parallel = 0; parallel < 2; parallel++) {
            made without = run_made((made){.sequence_parallel = parallel != 0}, ranks);
            made with = run_made((made){.sequence_parallel = parallel != 0, .with_copy = true}, ranks);
            check_same(&with, &without);
        }
}

Test(module, weight_gradients_put_off)
{
    made at_once = run_made((made){.with_copy = true}, 1);
    made later = run_made((made){.with_copy = true, .delayed = true}, 1);
    check_same(&later, &at_once);
}

/* ---- a module that adds to a gradient in a way that only its writer knows ---------------------------------------- */

typedef struct adding_module {
    copy_module copy; /* first */
    tp_param *param;
} adding_module;

static int one_param(void *self, tp_param **out, int capacity)
{
    if (capacity > 0)
        out[0] = ((adding_module *)self)->param;
    return 1;
}

static tp_status add_ones(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved)
{
    float *gradient = ((adding_module *)self)->param->grad_tied.data;
    tp_status status = copy_backward(ctx, self, pass, io, saved);
    for (int i = 0; i < HIDDEN; i++)
        gradient[i] += 1.0f;
    return status;
}

static tp_data *open_small_tokens(void)
{
    char path[] = "/tmp/tp-tokens-XXXXXX", bytes[50];
    int descriptor = mkstemp(path);
    for (int i = 0; i < (int)sizeof bytes; i++)
        bytes[i] = (char)(i * 7 % VOCABULARY);
    cr_assert_eq(write(descriptor, bytes, sizeof bytes), (ssize_t)sizeof bytes);
    close(descriptor);
    tp_data *data;
    cr_assert_eq(tp_data_open((const char *[]){path}, 1, TP_DATA_TEXT, &data), TP_OK, "%s", tp_last_message());
    unlink(path);
    return data;
}

/* A trainer clears such a gradient before every step, and uses all of it. */
Test(module, gradients_of_the_callers_own)
{
    int destroyed = 0, count = 0;
    float total[2], value[HIDDEN];
    tp_ctx *ctx;
    tp_model *model;
    tp_trainer *trainer;
    tp_module modules[MOST_MODULES];
    tp_module_table table = copy_table;
    table.params = one_param;
    table.backward = add_ones;
    adding_module own = {.copy = {.destroyed = &destroyed}};
    const made m = {.with_copy = true};
    const tp_param_desc desc = {
        .name = "own", .dims = 2, .shape = {2, HIDDEN / 2}, .dtype = TP_DTYPE_F32, .flags = TP_PARAM_TIED};
    const tp_trainer_desc plan = {
        .batch = 2, .sequence = SEQUENCE, .lr = 0.5f, .optimizer = {.kind = TP_OPTIMIZER_SGD}};
    tp_data *data = open_small_tokens();
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tp_param_create(ctx, &desc, &own.param), TP_OK);
    cr_assert_eq(make_modules(ctx, &m, &own.copy, total, modules, &count), TP_OK);
    modules[2].table = &table;
    const tp_compose_desc parts = {.modules = modules, .count = count, .dtype = TP_DTYPE_F32, .total = total};
    cr_assert_eq(tp_model_compose(ctx, &parts, &model), TP_OK, "%s", tp_ctx_message(ctx));
    tp_param *const *params = tp_model_params(model, &count);
    cr_assert_eq(tp_params_init(ctx, params, count), TP_OK);
    cr_assert_eq(tp_trainer_create(ctx, &plan, model, data, &trainer), TP_OK, "%s", tp_ctx_message(ctx));
    for (int step = 0; step < 3; step++)
        cr_assert_eq(tp_trainer_step(ctx, trainer, NULL), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_param_gather(ctx, own.param, 0, value), TP_OK);
    for (int i = 0; i < HIDDEN; i++)
        cr_assert_eq(value[i], -1.5f, "%d: %g", i, (double)value[i]);
    tp_trainer_destroy(trainer);
    tp_model_destroy(model);
    tp_param_destroy(ctx, own.param);
    tp_ctx_destroy(ctx);
    tp_data_close(data);
}

/* Modules are destroyed also when they cannot be composed. */
Test(module, failed_compositions_leave_nothing)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    int destroyed = 0;
    copy_module copy = {.destroyed = &destroyed};
    tp_module modules[2] = {{&copy_table, &copy}, {&copy_table, &copy}};
    float total[2];
    tp_model *model;
    tp_compose_desc desc = {.modules = modules, .count = 2, .dtype = TP_DTYPE_F32, .total = total};
    cr_assert_eq(tp_model_compose(ctx, &desc, &model), TP_ERR_ARGUMENT); /* no head */
    cr_assert_null(model);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "module 1 of 2 has 16 features"), "%s", tp_ctx_message(ctx));
    cr_assert_eq(destroyed, 2);
    desc.dtype = TP_DTYPE_I32;
    cr_assert_eq(tp_model_compose(ctx, &desc, &model), TP_ERR_DTYPE);
    cr_assert_eq(destroyed, 4);
    desc.count = 0;
    cr_assert_eq(tp_model_compose(ctx, &desc, &model), TP_ERR_ARGUMENT);
    tp_ctx_destroy(ctx);
}

static int64_t no_features(const void *self)
{
    (void)self;
    return 0;
}

static int fewer_than_none(void *self, tp_param **out, int capacity)
{
    (void)self;
    (void)out;
    (void)capacity;
    return -2;
}

/* A model whose head has this table must be refused, and its modules destroyed as far as they can be. */
static void check_refused(tp_ctx *ctx, tp_module_table table, const char *text)
{
    int destroyed = 0;
    float total[2];
    copy_module copy = {.destroyed = &destroyed};
    tp_module_table body = copy_table;
    tp_module modules[2] = {{&body, &copy}, {&table, &copy}};
    tp_compose_desc desc = {.modules = modules, .count = 2, .dtype = TP_DTYPE_F32, .total = total};
    tp_model *model;
    cr_assert_eq(tp_model_compose(ctx, &desc, &model), TP_ERR_ARGUMENT, "%s", text);
    cr_assert_null(model);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "module 1 of 2"), "%s", tp_ctx_message(ctx));
    cr_assert_not_null(strstr(tp_ctx_message(ctx), text), "not \"%s\": %s", text, tp_ctx_message(ctx));
    cr_assert_eq(destroyed, table.destroy != NULL ? 2 : 1);
}

Test(module, incomplete_tables_are_refused)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    tp_module_table head = copy_table;
    head.features = no_features;
#define CHECK_EMPTY(slot)                                                 \
    do {                                                                  \
        tp_module_table table = head;                                     \
        table.slot = NULL;                                                \
        check_refused(ctx, table, "slot " #slot " of its table is NULL"); \
    } while (0)
    CHECK_EMPTY(kind);
    CHECK_EMPTY(features);
    CHECK_EMPTY(saved_bytes);
    CHECK_EMPTY(delayed_bytes);
    CHECK_EMPTY(forward);
    CHECK_EMPTY(backward_input);
    CHECK_EMPTY(backward_weight);
    CHECK_EMPTY(backward);
    CHECK_EMPTY(params);
    CHECK_EMPTY(destroy);
#undef CHECK_EMPTY
    tp_module_table negative = head;
    negative.params = fewer_than_none;
    check_refused(ctx, negative, "has -2 parameters");
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
    tp_ctx_destroy(ctx);
}

/* Whose head is the caller's own has no logits that the library knows of. */
Test(module, no_logits_of_another_head)
{
    int destroyed = 0;
    float total[2];
    char saved[4096] __attribute__((aligned(64))) = {0};
    tp_ctx *ctx;
    tp_model *model;
    tp_tensor logits;
    struct {
        copy_module copy;
        char rest[1024]; /* nothing that looks like a module of the library */
    } own;
    memset(&own, 0x5a, sizeof own);
    own.copy = (copy_module){.destroyed = &destroyed};
    tp_module_table head = copy_table;
    head.features = no_features;
    tp_module modules[2] = {{&copy_table, &own.copy}, {&head, &own.copy}};
    const tp_compose_desc desc = {.modules = modules, .count = 2, .dtype = TP_DTYPE_F32, .total = total};
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tp_model_compose(ctx, &desc, &model), TP_OK, "%s", tp_ctx_message(ctx));
    const tp_pass pass = {.tokens = 2};
    cr_assert_leq(tp_model_saved_bytes(model, &pass), sizeof saved);
    cr_assert_eq(tp_model_logits(model, saved, &pass, &logits), TP_ERR_STATE);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "the head is not ours"), "%s", tp_ctx_message(ctx));
    tp_model_destroy(model);
    tp_ctx_destroy(ctx);
}
