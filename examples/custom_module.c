/* A module of one's own beside ours: an adapter, y = x + up(sin(down(x))), in a model that the trainer trains. It is
 * built from two linear layers, which cut its width over the ranks, and an activation that is the caller's. usage:
 * custom_module FILE */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tp/tp.h>

enum { VOCABULARY = 256, HIDDEN = 32, WIDTH = 16, SEQUENCE = 32, STEPS = 25 };

#define TRY(call)                 \
    do {                          \
        tp_status result = (call); \
        if (result != TP_OK)      \
            return result;        \
    } while (0)

/* ---- the module -------------------------------------------------------------------------------------------------- */

typedef struct adapter {
    tp_linear *down, *up; /* hidden -> width, cut; width -> hidden, cut the other way */
    int64_t width_here;
} adapter;

/* In the memory that forward and backward_input are given: views, then the numbers themselves. */
typedef struct adapter_saved {
    tp_linear_saved down, up;
    float *pre, *act; /* [tokens, width here] */
} adapter_saved;

typedef struct adapter_delayed {
    tp_linear_delayed down, up;
    float *dpre;
} adapter_delayed;

static const size_t head_bytes = 512; /* room for either struct, and a multiple of 64 */

static size_t matrix_bytes(const adapter *a, const tp_pass *pass)
{
    return ((size_t)pass->tokens * (size_t)a->width_here * sizeof(float) + 63) / 64 * 64;
}

static tp_tensor narrow(const adapter *a, const tp_pass *pass, float *data)
{
    return tp_tensor_2d(data, TP_DTYPE_F32, pass->tokens, a->width_here);
}

static int64_t adapter_features(const void *self)
{
    (void)self;
    return HIDDEN;
}

static size_t adapter_saved_bytes(const void *self, const tp_pass *pass)
{
    return head_bytes + 2 * matrix_bytes(self, pass);
}

static size_t adapter_delayed_bytes(const void *self, const tp_pass *pass)
{
    const adapter *a = self;
    return head_bytes + matrix_bytes(a, pass) + tp_linear_delayed_bytes(a->up, pass) +
           tp_linear_delayed_bytes(a->down, pass);
}

static tp_status adapter_run(tp_ctx *ctx, adapter *a, const tp_pass *pass, tp_tensor x, tp_tensor y, char *memory)
{
    adapter_saved *saved = (adapter_saved *)memory;
    saved->pre = (float *)(memory + head_bytes);
    saved->act = (float *)(memory + head_bytes + matrix_bytes(a, pass));
    tp_io down = {.in = x, .out = narrow(a, pass, saved->pre)};
    TRY(tp_linear_forward(ctx, a->down, pass, &down, &saved->down));
    TRY(tp_ctx_synchronize(ctx)); /* before the host reads */
    for (int64_t i = 0; i < pass->tokens * a->width_here; i++)
        saved->act[i] = sinf(saved->pre[i]);
    tp_io up = {.in = narrow(a, pass, saved->act), .out = y, .residual = x};
    return tp_linear_forward(ctx, a->up, pass, &up, &saved->up);
}

static tp_status adapter_forward(tp_ctx *ctx, void *self, const tp_pass *pass, tp_tensor x, tp_tensor y, void *saved)
{
    if (saved != NULL)
        return adapter_run(ctx, self, pass, x, y, saved);
    size_t bytes = adapter_saved_bytes(self, pass);
    void *memory;
    TRY(tp_ctx_allocate(ctx, TP_MEMORY_SCRATCH, bytes, &memory));
    tp_status status = adapter_run(ctx, self, pass, x, y, memory);
    tp_ctx_synchronize(ctx);
    tp_ctx_release(ctx, TP_MEMORY_SCRATCH, memory, bytes);
    return status;
}

static tp_status adapter_backward_input(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io,
                                        void *saved_memory, void *memory)
{
    adapter *a = self;
    const adapter_saved *saved = saved_memory;
    adapter_delayed *delayed = memory;
    char *rest = (char *)memory + head_bytes + matrix_bytes(a, pass);
    delayed->dpre = (float *)((char *)memory + head_bytes);
    delayed->up = (tp_linear_delayed){.memory = rest, .bytes = tp_linear_delayed_bytes(a->up, pass)};
    delayed->down =
        (tp_linear_delayed){.memory = rest + delayed->up.bytes, .bytes = tp_linear_delayed_bytes(a->down, pass)};
    tp_io up = {.in = io->in, .out = narrow(a, pass, delayed->dpre)};
    TRY(tp_linear_backward_input(ctx, a->up, pass, &up, &delayed->up));
    TRY(tp_ctx_synchronize(ctx));
    for (int64_t i = 0; i < pass->tokens * a->width_here; i++)
        delayed->dpre[i] *= cosf(saved->pre[i]);
    tp_io down = {.in = narrow(a, pass, delayed->dpre), .out = io->out};
    TRY(tp_linear_backward_input(ctx, a->down, pass, &down, &delayed->down));
    TRY(tp_ctx_synchronize(ctx));
    float *dx = io->out.data;
    const float *dy = io->in.data; /* went around */
    for (int64_t i = 0; i < pass->tokens * HIDDEN; i++)
        dx[i] += dy[i];
    return TP_OK;
}

static tp_status adapter_backward_weight(tp_ctx *ctx, void *self, const tp_pass *pass, void *saved_memory,
                                         void *delayed_memory)
{
    adapter *a = self;
    const adapter_saved *saved = saved_memory;
    const adapter_delayed *delayed = delayed_memory;
    TRY(tp_linear_backward_weight(ctx, a->up, pass, &saved->up, &delayed->up));
    return tp_linear_backward_weight(ctx, a->down, pass, &saved->down, &delayed->down);
}

static tp_status adapter_backward(tp_ctx *ctx, void *self, const tp_pass *pass, const tp_io *io, void *saved)
{
    size_t bytes = adapter_delayed_bytes(self, pass);
    void *memory;
    TRY(tp_ctx_allocate(ctx, TP_MEMORY_SCRATCH, bytes, &memory));
    tp_status status = adapter_backward_input(ctx, self, pass, io, saved, memory);
    if (status == TP_OK)
        status = adapter_backward_weight(ctx, self, pass, saved, memory);
    tp_ctx_synchronize(ctx);
    tp_ctx_release(ctx, TP_MEMORY_SCRATCH, memory, bytes);
    return status;
}

static int adapter_params(void *self, tp_param **out, int capacity)
{
    adapter *a = self;
    int count = tp_linear_params(a->down, out, capacity);
    int left = capacity > count ? capacity - count : 0;
    return count + tp_linear_params(a->up, left > 0 ? out + count : NULL, left);
}

static void adapter_destroy(void *self)
{
    adapter *a = self;
    tp_linear_destroy(a->down);
    tp_linear_destroy(a->up);
    free(a);
}

static const tp_module_table adapter_table = {
    .kind = "adapter",
    .features = adapter_features,
    .saved_bytes = adapter_saved_bytes,
    .delayed_bytes = adapter_delayed_bytes,
    .forward = adapter_forward,
    .backward_input = adapter_backward_input,
    .backward_weight = adapter_backward_weight,
    .backward = adapter_backward,
    .params = adapter_params,
    .destroy = adapter_destroy,
};

static tp_status adapter_create(tp_ctx *ctx, tp_module *out)
{
    tp_linear_desc down = {.name = "adapter.down",
                           .kind = TP_LINEAR_COLUMN,
                           .in_features = HIDDEN,
                           .out_features = WIDTH,
                           .dtype = TP_DTYPE_F32,
                           .bias = true,
                           .init_std = 0.1f};
    tp_linear_desc up = {.name = "adapter.up",
                         .kind = TP_LINEAR_ROW,
                         .in_features = WIDTH,
                         .out_features = HIDDEN,
                         .dtype = TP_DTYPE_F32,
                         .bias = true,
                         .init_std = 0.1f};
    adapter *a = calloc(1, sizeof *a);
    if (a == NULL)
        return TP_ERR_MEMORY;
    tp_status status = tp_linear_create(ctx, &down, &a->down);
    if (status == TP_OK)
        status = tp_linear_create(ctx, &up, &a->up);
    if (status != TP_OK) {
        adapter_destroy(a);
        return status;
    }
    a->width_here = tp_linear_local_features(a->down);
    *out = (tp_module){&adapter_table, a};
    return TP_OK;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static tp_status add_modules(tp_ctx *ctx, tp_module *modules, int *count, float *total)
{
    tp_embedding_desc embedding = {
        .name = "wte", .vocabulary = VOCABULARY, .features = HIDDEN, .positions = SEQUENCE, .dtype = TP_DTYPE_F32};
    TRY(tp_module_embedding(ctx, &embedding, &modules[(*count)]));
    (*count)++;
    TRY(adapter_create(ctx, &modules[*count]));
    (*count)++;
    tp_block_desc block = {.name = "block",
                           .hidden = HIDDEN,
                           .dtype = TP_DTYPE_F32,
                           .attention = {.heads = 4, .bias = true},
                           .mlp = {.ffn = 4 * HIDDEN, .bias = true}};
    TRY(tp_module_block(ctx, &block, &modules[*count]));
    (*count)++;
    tp_norm_desc norm = {.name = "norm", .features = HIDDEN, .dtype = TP_DTYPE_F32};
    TRY(tp_module_norm(ctx, &norm, &modules[*count]));
    (*count)++;
    tp_linear_desc head = {.name = "head", .in_features = HIDDEN, .out_features = VOCABULARY, .dtype = TP_DTYPE_F32};
    tp_cross_entropy_desc loss = {.vocabulary = VOCABULARY};
    TRY(tp_module_head(ctx, &head, &loss, total, &modules[*count]));
    (*count)++;
    return TP_OK;
}

static tp_status build(tp_ctx *ctx, float *total, tp_model **out)
{
    tp_module modules[5];
    int count = 0;
    tp_status status = add_modules(ctx, modules, &count, total);
    if (status == TP_OK)
        return tp_model_compose(
            ctx, &(tp_compose_desc){.modules = modules, .count = count, .dtype = TP_DTYPE_F32, .total = total}, out);
    while (count-- > 0)
        modules[count].table->destroy(modules[count].self);
    return status;
}

typedef struct job {
    const tp_data *data;
    double losses[STEPS];
} job;

static tp_status train(tp_ctx *ctx, tp_model *model, job *j)
{
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    TRY(tp_params_init(ctx, params, count));
    tp_trainer *trainer;
    tp_trainer_desc desc = {.batch = 4, .sequence = SEQUENCE, .lr = 5e-3f, .optimizer = {.kind = TP_OPTIMIZER_ADAMW}};
    TRY(tp_trainer_create(ctx, &desc, model, j->data, &trainer));
    tp_status status = TP_OK;
    for (int step = 0; step < STEPS && status == TP_OK; step++) {
        tp_train_report report = {0};
        status = tp_trainer_step(ctx, trainer, &report);
        if (tp_ctx_rank(ctx) == 0)
            j->losses[step] = report.loss;
    }
    tp_trainer_destroy(trainer);
    return status;
}

static tp_status run(tp_ctx *ctx, void *arg)
{
    void *total;
    TRY(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 2 * sizeof(float), &total));
    tp_model *model = NULL;
    tp_status status = build(ctx, total, &model);
    if (status == TP_OK)
        status = train(ctx, model, arg);
    tp_model_destroy(model);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, total, 2 * sizeof(float));
    return status;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : NULL;
    tp_data *data = NULL;
    if (path == NULL || tp_data_open(&path, 1, TP_DATA_TEXT, &data) != TP_OK) {
        fprintf(stderr, "custom_module: %s\n", path == NULL ? "usage: custom_module FILE" : tp_last_message());
        return 2;
    }
    job one = {.data = data}, two = {.data = data};
    tp_status status = tp_run_ranks(&(tp_run_options){.ranks = 1}, run, &one);
    if (status == TP_OK)
        status = tp_run_ranks(&(tp_run_options){.ranks = 2}, run, &two);
    if (status != TP_OK)
        fprintf(stderr, "custom_module: %s\n", tp_last_message());
    tp_data_close(data);
    int same = 1;
    for (int step = 0; step < STEPS; step++)
        same = same && one.losses[step] == two.losses[step];
    printf("custom_module: loss %.4f, after %d steps %.4f; two ranks give %s losses\n", one.losses[0], STEPS,
           one.losses[STEPS - 1], same ? "the same" : "OTHER");
    return status != TP_OK || !same || !(one.losses[STEPS - 1] < one.losses[0]);
}
