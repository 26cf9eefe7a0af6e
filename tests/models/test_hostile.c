/* Calls that no sane program makes: each is refused with a message, or does nothing; none ends the process. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tp/tp.h>
#include <unistd.h>

#include "support/data.h"
#include "support/text.h"

enum { TOKENS = 8, HIDDEN = 8, VOCABULARY = 256, SAVED_BYTES = 1 << 16, MOST_PARAMS = 64 };

/* One of everything, made in the usual way. */
typedef struct things {
    tp_ctx *ctx, *other; /* two ranks of nothing: contexts that do not know each other */
    tp_linear *linear;
    tp_norm *norm;
    tp_mlp *mlp;
    tp_attention *attention;
    tp_block *block;
    tp_embedding *embedding;
    tp_model *model;
    tp_optimizer *optimizer;
    tp_trainer *trainer;
    tp_data *data;
    tp_pass pass;
    tp_tensor x, y, logits;
    tp_io io;
    tp_linear_saved linear_saved;
    tp_linear_delayed linear_delayed;
    tp_norm_saved norm_saved;
    tp_norm_delayed norm_delayed;
    tp_mlp_saved mlp_saved;
    tp_mlp_delayed mlp_delayed;
    tp_attention_saved attention_saved;
    tp_attention_delayed attention_delayed;
    tp_block_saved block_saved;
    tp_block_delayed block_delayed;
    tp_cross_entropy_saved loss_saved;
    void *model_saved;
    tp_param *const *params;
    int count;
} things;

static const tp_linear_desc linear_desc = {
    .name = "l", .in_features = HIDDEN, .out_features = HIDDEN, .dtype = TP_DTYPE_F32};
static const tp_norm_desc norm_desc = {.name = "n", .features = HIDDEN, .dtype = TP_DTYPE_F32};
static const tp_mlp_desc mlp_desc = {.name = "m", .hidden = HIDDEN, .ffn = 12, .dtype = TP_DTYPE_F32};
static const tp_attention_desc attention_desc = {.name = "a", .hidden = HIDDEN, .heads = 2, .dtype = TP_DTYPE_F32};
static const tp_block_desc block_desc = {
    .name = "b", .hidden = HIDDEN, .dtype = TP_DTYPE_F32, .attention = {.heads = 2}, .mlp = {.ffn = 12}};
static const tp_embedding_desc embedding_desc = {
    .name = "e", .vocabulary = VOCABULARY, .features = HIDDEN, .dtype = TP_DTYPE_F32};
static const tp_cross_entropy_desc loss_desc = {.vocabulary = VOCABULARY};
static const tp_model_desc model_desc = {.family = TP_MODEL_GPT2,
                                         .layers = 1,
                                         .hidden = HIDDEN,
                                         .heads = 2,
                                         .vocabulary = VOCABULARY,
                                         .positions = TOKENS,
                                         .dtype = TP_DTYPE_F32};
static const tp_optimizer_desc optimizer_desc = {.kind = TP_OPTIMIZER_SGD};
static const tp_trainer_desc trainer_desc = {.batch = 1, .sequence = TOKENS, .lr = 0.1f};
static const int32_t ids[TOKENS] = {1, 2, 3, 4, 5, 6, 7, 8};
static float total[2];

#define MAKE(call) cr_assert_eq((call), TP_OK, "%s", tp_last_message())

static void make_layers(things *t)
{
    MAKE(tp_linear_create(t->ctx, &linear_desc, &t->linear));
    MAKE(tp_norm_create(t->ctx, &norm_desc, &t->norm));
    MAKE(tp_mlp_create(t->ctx, &mlp_desc, &t->mlp));
    MAKE(tp_attention_create(t->ctx, &attention_desc, &t->attention));
    MAKE(tp_block_create(t->ctx, &block_desc, &t->block));
    MAKE(tp_embedding_create(t->ctx, &embedding_desc, &t->embedding));
}

static void make_memory(things *t)
{
    t->linear_delayed = (tp_linear_delayed){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->norm_saved = (tp_norm_saved){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->mlp_saved = (tp_mlp_saved){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->mlp_delayed = (tp_mlp_delayed){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->attention_saved = (tp_attention_saved){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->attention_delayed = (tp_attention_delayed){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->block_saved = (tp_block_saved){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->block_delayed = (tp_block_delayed){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->loss_saved = (tp_cross_entropy_saved){.memory = tpt_allocate(SAVED_BYTES), .bytes = SAVED_BYTES};
    t->model_saved = tpt_allocate(tp_model_saved_bytes(t->model, &t->pass));
}

static void make_things(things *t)
{
    *t = (things){.pass = {.tokens = TOKENS, .ids = ids, .targets = ids}};
    MAKE(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &t->ctx));
    MAKE(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &t->other));
    make_layers(t);
    MAKE(tp_model_create(t->ctx, &model_desc, &t->model));
    t->params = tp_model_params(t->model, &t->count);
    MAKE(tp_params_init(t->ctx, t->params, t->count));
    MAKE(tp_optimizer_create(t->ctx, &optimizer_desc, t->params, t->count, &t->optimizer));
    t->data = tpt_open_text(200);
    MAKE(tp_trainer_create(t->ctx, &trainer_desc, t->model, t->data, &t->trainer));
    t->x = tp_tensor_2d(tpt_array(TP_DTYPE_F32, TOKENS * HIDDEN), TP_DTYPE_F32, TOKENS, HIDDEN);
    t->y = tp_tensor_2d(tpt_array(TP_DTYPE_F32, TOKENS * HIDDEN), TP_DTYPE_F32, TOKENS, HIDDEN);
    t->logits = tp_tensor_2d(tpt_array(TP_DTYPE_F32, TOKENS * VOCABULARY), TP_DTYPE_F32, TOKENS, VOCABULARY);
    t->io = (tp_io){.in = t->x, .out = t->y};
    make_memory(t);
}

static void drop_things(things *t)
{
    void *memory[] = {t->x.data, t->y.data, t->logits.data, t->linear_delayed.memory, t->norm_saved.memory,
                      t->mlp_saved.memory,
                      t->mlp_delayed.memory, t->attention_saved.memory, t->attention_delayed.memory,
                      t->block_saved.memory,
                      t->block_delayed.memory, t->loss_saved.memory, t->model_saved};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
    tp_trainer_destroy(t->trainer);
    tp_optimizer_destroy(t->optimizer);
    tp_model_destroy(t->model);
    tp_data_close(t->data);
    tp_embedding_destroy(t->embedding);
    tp_block_destroy(t->block);
    tp_attention_destroy(t->attention);
    tp_mlp_destroy(t->mlp);
    tp_norm_destroy(t->norm);
    tp_linear_destroy(t->linear);
    tp_ctx_destroy(t->other);
    tp_ctx_destroy(t->ctx);
}

/* Makes call number `n` of a list and says how it is written; false past the end. */
typedef bool (*hostile_list)(things *t, int n, const char **text, tp_status *status);

#define LIST_BEGIN(name)                                                     \
    static bool name(things *t, int n, const char **text, tp_status *status) \
    {                                                                        \
        int at = 0;                                                          \
        union {                                                              \
            void *pointer;                                                   \
            tp_linear *linear;                                               \
            tp_norm *norm;                                                   \
            tp_mlp *mlp;                                                     \
            tp_attention *attention;                                         \
            tp_block *block;                                                 \
            tp_embedding *embedding;                                         \
            tp_model *model;                                                 \
            tp_optimizer *optimizer;                                         \
            tp_trainer *trainer;                                             \
            tp_data *data;                                                   \
            tp_module module;                                                \
            tp_model_desc model_desc;                                        \
            tp_tensor tensor;                                                \
            tp_train_report report;                                          \
            tp_mesh mesh;                                                    \
            double real[2];                                                  \
            float *floats[3];                                                \
            int32_t id[4];                                                   \
        } out = {0};                                                         \
        (void)out;                                                           \
        (void)t;
#define CALL(...)                                                                                                      \
    if (at++ == n) {                                                                                                   \
        *text = #__VA_ARGS__;                                                                                          \
        *status = (__VA_ARGS__);                                                                                       \
        return true;                                                                                                   \
    }
#define LIST_END                                                                                                       \
    return false;                                                                                                      \
    }

#define CREATE_NULLS(kind)                                                                                             \
    CALL(tp_##kind##_create(NULL, &kind##_desc, &out.kind))                                                            \
    CALL(tp_##kind##_create(t->ctx, NULL, &out.kind))                                                                  \
    CALL(tp_##kind##_create(t->ctx, &kind##_desc, NULL))

#define LAYER_NULLS(kind)                                                                                   \
    CREATE_NULLS(kind)                                                                                      \
    CALL(tp_##kind##_forward(NULL, t->kind, &t->pass, &t->io, &t->kind##_saved))                            \
    CALL(tp_##kind##_forward(t->ctx, NULL, &t->pass, &t->io, &t->kind##_saved))                             \
    CALL(tp_##kind##_forward(t->ctx, t->kind, &t->pass, NULL, &t->kind##_saved))                            \
    CALL(tp_##kind##_forward(t->ctx, t->kind, &t->pass, &(tp_io){0}, &t->kind##_saved))                     \
    CALL(tp_##kind##_forward(t->ctx, t->kind, &t->pass, &(tp_io){.in = t->x}, &t->kind##_saved))            \
    CALL(tp_##kind##_forward(t->ctx, t->kind, &t->pass, &(tp_io){.out = t->x}, &t->kind##_saved))           \
    CALL(tp_##kind##_backward_input(NULL, t->kind, &t->pass, &t->io, &t->kind##_saved, &t->kind##_delayed)) \
    CALL(tp_##kind##_backward_input(t->ctx, NULL, &t->pass, &t->io, &t->kind##_saved, &t->kind##_delayed))  \
    CALL(tp_##kind##_backward_input(t->ctx, t->kind, &t->pass, NULL, &t->kind##_saved, &t->kind##_delayed)) \
    CALL(tp_##kind##_backward_input(t->ctx, t->kind, &t->pass, &t->io, NULL, &t->kind##_delayed))           \
    CALL(tp_##kind##_backward_weight(NULL, t->kind, &t->pass, &t->kind##_saved, &t->kind##_delayed))        \
    CALL(tp_##kind##_backward_weight(t->ctx, NULL, &t->pass, &t->kind##_saved, &t->kind##_delayed))         \
    CALL(tp_##kind##_backward_weight(t->ctx, t->kind, &t->pass, NULL, &t->kind##_delayed))                  \
    CALL(tp_##kind##_backward_weight(t->ctx, t->kind, &t->pass, &t->kind##_saved, NULL))                    \
    CALL(tp_##kind##_backward(NULL, t->kind, &t->pass, &t->io, &t->kind##_saved))                           \
    CALL(tp_##kind##_backward(t->ctx, NULL, &t->pass, &t->io, &t->kind##_saved))                            \
    CALL(tp_##kind##_backward(t->ctx, t->kind, &t->pass, NULL, &t->kind##_saved))                           \
    CALL(tp_##kind##_backward(t->ctx, t->kind, &t->pass, &t->io, NULL))                                     \
    /* what forward has not filled */                                                                       \
    CALL(tp_##kind##_backward(t->ctx, t->kind, &t->pass, &t->io, &t->kind##_saved))                         \
    CALL(tp_##kind##_backward_weight(t->ctx, t->kind, &t->pass, &t->kind##_saved, &t->kind##_delayed))      \
    /* of another context */                                                                                \
    CALL(tp_##kind##_forward(t->other, t->kind, &t->pass, &t->io, &t->kind##_saved))                        \
    CALL(tp_##kind##_backward(t->other, t->kind, &t->pass, &t->io, &t->kind##_saved))

/* backward_input of a linear layer has no saved. */
#define tp_linear_backward_input(ctx, layer, pass, io, saved, delayed)                                                 \
    ((saved) == NULL ? tp_linear_backward_input(NULL, layer, pass, io, delayed)                                        \
                     : tp_linear_backward_input(ctx, layer, pass, io, delayed))

LIST_BEGIN(layers_one)
    LAYER_NULLS(linear)
    LAYER_NULLS(norm)
    LAYER_NULLS(mlp)
LIST_END

LIST_BEGIN(layers_two)
    LAYER_NULLS(attention)
    LAYER_NULLS(block)
LIST_END

LIST_BEGIN(ends)
    CREATE_NULLS(embedding)
    CALL(tp_embedding_forward(NULL, t->embedding, &t->pass, t->y))
    CALL(tp_embedding_forward(t->ctx, NULL, &t->pass, t->y))
    CALL(tp_embedding_forward(t->ctx, t->embedding, NULL, t->y))
    CALL(tp_embedding_forward(t->ctx, t->embedding, &(tp_pass){.tokens = TOKENS}, t->y))
    CALL(tp_embedding_forward(t->ctx, t->embedding, &t->pass, tp_tensor_none()))
    CALL(tp_embedding_forward(t->other, t->embedding, &t->pass, t->y))
    CALL(tp_embedding_backward(NULL, t->embedding, &t->pass, t->y))
    CALL(tp_embedding_backward(t->ctx, NULL, &t->pass, t->y))
    CALL(tp_embedding_backward(t->ctx, t->embedding, NULL, t->y))
    CALL(tp_embedding_backward(t->ctx, t->embedding, &t->pass, tp_tensor_none()))
    CALL(tp_embedding_backward(t->other, t->embedding, &t->pass, t->y))
    CALL(tp_cross_entropy_forward(NULL, &loss_desc, &t->pass, t->logits, total, &t->loss_saved))
    CALL(tp_cross_entropy_forward(t->ctx, NULL, &t->pass, t->logits, total, &t->loss_saved))
    CALL(tp_cross_entropy_forward(t->ctx, &loss_desc, NULL, t->logits, total, &t->loss_saved))
    CALL(tp_cross_entropy_forward(t->ctx, &loss_desc, &(tp_pass){.tokens = TOKENS}, t->logits, total, &t->loss_saved))
    CALL(tp_cross_entropy_forward(t->ctx, &loss_desc, &t->pass, tp_tensor_none(), total, &t->loss_saved))
    CALL(tp_cross_entropy_forward(t->ctx, &loss_desc, &t->pass, t->logits, NULL, &t->loss_saved))
    CALL(tp_cross_entropy_forward(t->ctx, &loss_desc, &t->pass, t->logits, total, &(tp_cross_entropy_saved){0}))
    CALL(tp_cross_entropy_backward(NULL, &loss_desc, &t->pass, &t->loss_saved))
    CALL(tp_cross_entropy_backward(t->ctx, NULL, &t->pass, &t->loss_saved))
    CALL(tp_cross_entropy_backward(t->ctx, &loss_desc, NULL, &t->loss_saved))
    CALL(tp_cross_entropy_backward(t->ctx, &loss_desc, &t->pass, NULL))
    CALL(tp_cross_entropy_backward(t->ctx, &loss_desc, &t->pass, &t->loss_saved))
    CALL(tp_module_block(NULL, &block_desc, &out.module))
    CALL(tp_module_block(t->ctx, NULL, &out.module))
    CALL(tp_module_block(t->ctx, &block_desc, NULL))
    CALL(tp_module_norm(NULL, &norm_desc, &out.module))
    CALL(tp_module_norm(t->ctx, NULL, &out.module))
    CALL(tp_module_norm(t->ctx, &norm_desc, NULL))
    CALL(tp_module_embedding(NULL, &embedding_desc, &out.module))
    CALL(tp_module_embedding(t->ctx, NULL, &out.module))
    CALL(tp_module_embedding(t->ctx, &embedding_desc, NULL))
    CALL(tp_module_head(NULL, &linear_desc, &loss_desc, total, &out.module))
    CALL(tp_module_head(t->ctx, NULL, &loss_desc, total, &out.module))
    CALL(tp_module_head(t->ctx, &linear_desc, NULL, total, &out.module))
    CALL(tp_module_head(t->ctx, &linear_desc, &loss_desc, NULL, &out.module))
    CALL(tp_module_head(t->ctx, &linear_desc, &loss_desc, total, NULL))
LIST_END

LIST_BEGIN(whole)
    CREATE_NULLS(model)
    CALL(tp_model_preset(NULL, &out.model_desc))
    CALL(tp_model_preset("gpt2", NULL))
    CALL(tp_model_check(NULL, 1))
    CALL(tp_model_compose(NULL, &(tp_compose_desc){0}, &out.model))
    CALL(tp_model_compose(t->ctx, NULL, &out.model))
    CALL(tp_model_compose(t->ctx, &(tp_compose_desc){0}, NULL))
    CALL(tp_model_compose(t->ctx, &(tp_compose_desc){0}, &out.model))
    CALL(tp_model_compose(
        t->ctx, &(tp_compose_desc){.count = 1, .dtype = TP_DTYPE_F32, .total = total, .modules = &(tp_module){0}},
        &out.model))
    CALL(tp_model_forward(NULL, t->model, &t->pass, NULL))
    CALL(tp_model_forward(t->ctx, NULL, &t->pass, NULL))
    CALL(tp_model_forward(t->ctx, t->model, NULL, NULL))
    CALL(tp_model_forward(t->other, t->model, &t->pass, NULL))
    CALL(tp_model_backward(NULL, t->model, &t->pass, t->model_saved))
    CALL(tp_model_backward(t->ctx, NULL, &t->pass, t->model_saved))
    CALL(tp_model_backward(t->ctx, t->model, NULL, t->model_saved))
    CALL(tp_model_backward(t->ctx, t->model, &t->pass, NULL))
    CALL(tp_model_backward(t->ctx, t->model, &t->pass, t->model_saved)) /* without forward */
    CALL(tp_model_backward(t->other, t->model, &t->pass, t->model_saved))
    CALL(tp_model_loss(NULL, t->model, &out.real[0], &out.real[1]))
    CALL(tp_model_loss(t->ctx, NULL, &out.real[0], &out.real[1]))
    CALL(tp_model_loss(t->ctx, t->model, NULL, &out.real[1]))
    CALL(tp_model_loss(t->ctx, t->model, &out.real[0], NULL))
    CALL(tp_model_loss(t->other, t->model, &out.real[0], &out.real[1]))
    CALL(tp_model_logits(NULL, t->model_saved, &t->pass, &out.tensor))
    CALL(tp_model_logits(t->model, NULL, &t->pass, &out.tensor))
    CALL(tp_model_logits(t->model, t->model_saved, NULL, &out.tensor))
    CALL(tp_model_logits(t->model, t->model_saved, &t->pass, NULL))
    CALL(tp_model_logits(t->model, t->model_saved, &t->pass, &out.tensor)) /* without forward */
LIST_END

LIST_BEGIN(training)
    CALL(tp_optimizer_create(NULL, &optimizer_desc, t->params, t->count, &out.optimizer))
    CALL(tp_optimizer_create(t->ctx, NULL, t->params, t->count, &out.optimizer))
    CALL(tp_optimizer_create(t->ctx, &optimizer_desc, NULL, t->count, &out.optimizer))
    CALL(tp_optimizer_create(t->ctx, &optimizer_desc, t->params, -1, &out.optimizer))
    CALL(tp_optimizer_create(t->ctx, &optimizer_desc, &(tp_param *){NULL}, 1, &out.optimizer))
    CALL(tp_optimizer_create(t->ctx, &optimizer_desc, (tp_param *[]){t->params[0], t->params[0]}, 2, &out.optimizer))
    CALL(tp_optimizer_create(t->ctx, &optimizer_desc, t->params, t->count, NULL))
    CALL(tp_optimizer_step(NULL, t->optimizer, 0.1f, NULL))
    CALL(tp_optimizer_step(t->ctx, NULL, 0.1f, NULL))
    CALL(tp_optimizer_step(t->ctx, t->optimizer, INFINITY, NULL))
    CALL(tp_optimizer_step(t->other, t->optimizer, 0.1f, NULL))
    CALL(tp_optimizer_state(NULL, t->params[0], &out.floats[0], &out.floats[1], &out.floats[2], &(int64_t){0}))
    CALL(tp_optimizer_state(t->optimizer, NULL, &out.floats[0], &out.floats[1], &out.floats[2], &(int64_t){0}))
    CALL(tp_trainer_create(NULL, &trainer_desc, t->model, t->data, &out.trainer))
    CALL(tp_trainer_create(t->ctx, NULL, t->model, t->data, &out.trainer))
    CALL(tp_trainer_create(t->ctx, &trainer_desc, NULL, t->data, &out.trainer))
    CALL(tp_trainer_create(t->ctx, &trainer_desc, t->model, NULL, &out.trainer))
    CALL(tp_trainer_create(t->ctx, &trainer_desc, t->model, t->data, NULL))
    CALL(tp_trainer_create(t->other, &trainer_desc, t->model, t->data, &out.trainer))
    CALL(tp_trainer_step(NULL, t->trainer, &out.report))
    CALL(tp_trainer_step(t->ctx, NULL, &out.report))
    CALL(tp_trainer_step(t->other, t->trainer, &out.report))
    CALL(tp_trainer_evaluate(NULL, t->trainer, 0, 1, out.real))
    CALL(tp_trainer_evaluate(t->ctx, NULL, 0, 1, out.real))
    CALL(tp_trainer_evaluate(t->ctx, t->trainer, 0, 1, NULL))
    CALL(tp_trainer_evaluate(t->ctx, t->trainer, -1, 1, out.real))
    CALL(tp_trainer_evaluate(t->ctx, t->trainer, 0, 0, out.real))
    CALL(tp_trainer_evaluate(t->other, t->trainer, 0, 1, out.real))
    CALL(tp_param_load(NULL, t->params[0], total, TP_DTYPE_F32, NULL))
    CALL(tp_param_load(t->ctx, NULL, total, TP_DTYPE_F32, NULL))
    CALL(tp_param_load(t->ctx, t->params[0], NULL, TP_DTYPE_F32, NULL))
    CALL(tp_param_load(t->ctx, t->params[0], total, TP_DTYPE_I32, NULL))
    CALL(tp_param_gather(NULL, t->params[0], 0, total))
    CALL(tp_param_gather(t->ctx, NULL, 0, total))
    CALL(tp_param_gather(t->ctx, t->params[0], 0, NULL))
    CALL(tp_param_gather(t->ctx, t->params[0], 2, total))
    CALL(tp_param_touch(NULL, t->params[0]))
    CALL(tp_param_touch(t->ctx, NULL))
    CALL(tp_params_init(NULL, t->params, t->count))
    CALL(tp_params_init(t->ctx, NULL, t->count))
    CALL(tp_params_init(t->ctx, t->params, -1))
    CALL(tp_params_zero_grad(NULL, t->params, t->count))
    CALL(tp_params_zero_grad(t->ctx, NULL, t->count))
    CALL(tp_params_begin(NULL, t->params, t->count))
    CALL(tp_params_begin(t->ctx, NULL, t->count))
    CALL(tp_params_finish(NULL, t->params, t->count))
    CALL(tp_params_finish(t->ctx, NULL, t->count))
    CALL(tp_params_grad_norm(NULL, t->params, t->count, total))
    CALL(tp_params_grad_norm(t->ctx, NULL, t->count, total))
    CALL(tp_params_grad_norm(t->ctx, t->params, t->count, NULL))
LIST_END

LIST_BEGIN(ground)
    CALL(tp_ctx_create(NULL, &(tp_ctx *){NULL}))
    CALL(tp_ctx_create(&(tp_ctx_desc){0}, NULL))
    CALL(tp_ctx_create(&(tp_ctx_desc){.threads = -1}, &(tp_ctx *){NULL}))
    CALL(tp_ctx_create(&(tp_ctx_desc){.rank = 1}, &(tp_ctx *){NULL}))
    CALL(tp_ctx_allocate(NULL, TP_MEMORY_OTHER, 1, &out.pointer))
    CALL(tp_ctx_allocate(t->ctx, TP_MEMORY_OTHER, 1, NULL))
    CALL(tp_ctx_allocate(t->ctx, TP_MEMORY_KINDS, 1, &out.pointer))
    CALL(tp_ctx_allocate(t->ctx, TP_MEMORY_OTHER, SIZE_MAX, &out.pointer))
    CALL(tp_ctx_allocate(t->ctx, TP_MEMORY_OTHER, SIZE_MAX / 2, &out.pointer))
    CALL(tp_ctx_synchronize(NULL))
    CALL(tp_mesh_resolve(NULL, 1))
    CALL(tp_mesh_resolve(&out.mesh, 0))
    CALL(tp_run_ranks(&(tp_run_options){.ranks = 2}, NULL, NULL))
    CALL(tp_world_create_threads(NULL, &(tp_world *){NULL}))
    CALL(tp_world_create_threads(&(tp_world_desc){.ranks = 2}, NULL))
    CALL(tp_all_reduce(NULL, tp_ctx_world(t->ctx), t->x, t->y, NULL))
    CALL(tp_all_reduce(t->ctx, NULL, t->x, t->y, NULL))
    CALL(tp_all_reduce(t->other, tp_ctx_world(t->ctx), t->x, t->y, NULL))
    CALL(tp_all_reduce(t->ctx, tp_ctx_world(t->ctx), tp_tensor_none(), t->y, NULL))
    CALL(tp_all_gather(t->ctx, tp_ctx_world(t->ctx), t->x, tp_tensor_none(), NULL))
    CALL(tp_broadcast(t->ctx, tp_ctx_world(t->ctx), t->x, 1))
    CALL(tp_p2p_batch(t->ctx, tp_ctx_world(t->ctx), NULL, 1))
    CALL(tp_p2p_batch(t->ctx, tp_ctx_world(t->ctx), NULL, -1))
    CALL(tp_comm_split(t->ctx, tp_ctx_world(t->ctx), 0, 0, NULL))
    CALL(tp_symmetric_create(t->ctx, tp_ctx_world(t->ctx), 8, NULL))
    CALL(tp_data_open(NULL, 1, TP_DATA_TEXT, &out.data))
    CALL(tp_data_open(&(const char *){"/dev/null"}, 1, TP_DATA_TEXT, NULL))
    CALL(tp_data_open(&(const char *){"/dev/null"}, 0, TP_DATA_TEXT, &out.data))
    CALL(tp_data_open(&(const char *){"/"}, 1, TP_DATA_TEXT, &out.data))
    CALL(tp_data_open(&(const char *){"/dev/null"}, 1, (tp_data_format)99, &out.data))
    CALL(tp_data_read(NULL, 0, 1, out.id, out.id + 2))
    CALL(tp_data_read(t->data, 0, 1, NULL, out.id))
    CALL(tp_data_read(t->data, 0, 1, out.id, NULL))
    CALL(tp_data_read(t->data, INT64_MIN, 1, out.id, out.id + 2))
    CALL(tp_data_read(t->data, 0, INT64_MAX, out.id, out.id + 2))
    CALL(tp_data_read(t->data, -1, 1, out.id, out.id + 2))
LIST_END

/* In a process of its own: what it says, or how it died. */
static bool survives(hostile_list list, things *t, int n)
{
    fflush(stderr);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        const char *text = "";
        tp_status status = TP_OK;
        if (!list(t, n, &text, &status))
            _exit(77);
        bool good = status != TP_OK && tp_last_message()[0] != 0;
        if (!good)
            fprintf(stderr, "returned %s, \"%s\": %s\n", tp_status_name(status), tp_last_message(), text);
        _exit(good ? 0 : 1);
    }
    int end;
    waitpid(child, &end, 0);
    if (WIFEXITED(end) && WEXITSTATUS(end) == 77)
        return false;
    if (!WIFEXITED(end))
        fprintf(stderr, "died of signal %d: call %d\n", WTERMSIG(end), n);
    cr_expect(WIFEXITED(end) && WEXITSTATUS(end) == 0, "call %d", n);
    return true;
}

static void check_list(hostile_list list)
{
    things t;
    make_things(&t);
    int n = 0;
    while (survives(list, &t, n))
        n++;
    cr_assert_gt(n, 10);
    drop_things(&t);
}

Test(hostile, linear_norm_and_mlp)
{
    check_list(layers_one);
}

Test(hostile, attention_and_block)
{
    check_list(layers_two);
}

Test(hostile, embedding_loss_and_modules)
{
    check_list(ends);
}

Test(hostile, models)
{
    check_list(whole);
}

Test(hostile, training)
{
    check_list(training);
}

Test(hostile, contexts_worlds_and_data)
{
    check_list(ground);
}
