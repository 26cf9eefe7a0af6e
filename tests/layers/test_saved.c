/* What forward saved, or backward_input left, and backward is given: of other tokens, another dtype, cut or without
 * memory it is refused before anything is changed, and the right one works afterwards. So are outputs that don't
 * fit. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

enum { TOKENS = 8, MORE = 12, FEATURES = 16, WIDE = 24, HEADS = 4, MOST = MORE * 4 * WIDE, PARAMS = 4 };

typedef enum layer_kind { COLUMN, ROW, MLP, GATED_MLP, ATTENTION, KINDS } layer_kind;
/* What is wrong with a saved tensor. */
typedef enum wrong { LESS_ROWS, LESS_COLUMNS, OTHER_DTYPE, NO_MEMORY, NOTHING_SAVED, WRONGS } wrong;
typedef enum way { BOTH, INPUT_FIRST, WEIGHT, WAYS } way;

typedef struct scene {
    layer_kind kind;
    tp_overlap overlap;
    bool sequence_parallel;
} scene;

typedef struct layer {
    layer_kind kind;
    tp_linear *linear;
    tp_mlp *mlp;
    tp_attention *attention;
    tp_linear_saved linear_saved;
    tp_mlp_saved mlp_saved;
    tp_attention_saved attention_saved;
    tp_linear_delayed linear_delayed;
    tp_mlp_delayed mlp_delayed;
    tp_attention_delayed attention_delayed;
    tp_param *param[PARAMS];
    int params;
    int64_t in, out; /* columns here */
} layer;

static void *zeros(size_t bytes)
{
    size_t whole = (bytes / 64 + 1) * 64; /* as the memory of saved and delayed has to be aligned */
    void *memory = aligned_alloc(64, whole);
    cr_assert_not_null(memory);
    return memset(memory, 0, whole);
}

static tp_status open_linear(tp_ctx *ctx, const scene *s, layer *l)
{
    const tp_linear_desc desc = {.name = "layer",
                                 .kind = s->kind == COLUMN ? TP_LINEAR_COLUMN : TP_LINEAR_ROW,
                                 .in_features = FEATURES,
                                 .out_features = WIDE,
                                 .dtype = TP_DTYPE_F32,
                                 .bias = true,
                                 .sequence_parallel = s->sequence_parallel,
                                 .overlap = s->overlap,
                                 .chunks = 2};
    tp_status status = tp_linear_create(ctx, &desc, &l->linear);
    if (status != TP_OK)
        return status;
    l->params = tp_linear_params(l->linear, l->param, PARAMS);
    l->in = s->kind == COLUMN ? FEATURES : tp_linear_local_features(l->linear);
    l->out = s->kind == COLUMN ? tp_linear_local_features(l->linear) : WIDE;
    return TP_OK;
}

static tp_status open_mlp(tp_ctx *ctx, const scene *s, layer *l)
{
    const tp_mlp_desc desc = {.name = "layer",
                              .hidden = FEATURES,
                              .ffn = WIDE,
                              .activation = s->kind == MLP ? TP_ACTIVATION_GELU_TANH : TP_ACTIVATION_SWIGLU,
                              .dtype = TP_DTYPE_F32,
                              .sequence_parallel = s->sequence_parallel,
                              .overlap = s->overlap,
                              .chunks = 2};
    tp_status status = tp_mlp_create(ctx, &desc, &l->mlp);
    if (status != TP_OK)
        return status;
    const tp_pass pass = {.tokens = MORE};
    l->params = tp_mlp_params(l->mlp, l->param, PARAMS);
    l->mlp_saved.bytes = tp_mlp_saved_bytes(l->mlp, &pass);
    l->mlp_saved.memory = zeros(l->mlp_saved.bytes);
    l->in = l->out = FEATURES;
    return TP_OK;
}

static tp_status open_attention(tp_ctx *ctx, const scene *s, layer *l)
{
    const tp_attention_desc desc = {.name = "layer",
                                    .hidden = FEATURES,
                                    .heads = HEADS,
                                    .kv_heads = HEADS,
                                    .dtype = TP_DTYPE_F32,
                                    .sequence_parallel = s->sequence_parallel,
                                    .overlap = s->overlap,
                                    .chunks = 2};
    tp_status status = tp_attention_create(ctx, &desc, &l->attention);
    if (status != TP_OK)
        return status;
    const tp_pass pass = {.tokens = MORE};
    l->params = tp_attention_params(l->attention, l->param, PARAMS);
    l->attention_saved.bytes = tp_attention_saved_bytes(l->attention, &pass);
    l->attention_saved.memory = zeros(l->attention_saved.bytes);
    l->in = l->out = FEATURES;
    return TP_OK;
}

static tp_status open_layer(tp_ctx *ctx, const scene *s, layer *l)
{
    *l = (layer){.kind = s->kind};
    tp_status status = s->kind <= ROW         ? open_linear(ctx, s, l)
                       : s->kind <= GATED_MLP ? open_mlp(ctx, s, l)
                                              : open_attention(ctx, s, l);
    if (status != TP_OK)
        return status;
    const tp_pass pass = {.tokens = MORE};
    if (l->linear != NULL)
        l->linear_delayed.memory = zeros(l->linear_delayed.bytes = tp_linear_delayed_bytes(l->linear, &pass));
    if (l->mlp != NULL)
        l->mlp_delayed.memory = zeros(l->mlp_delayed.bytes = tp_mlp_delayed_bytes(l->mlp, &pass));
    if (l->attention != NULL)
        l->attention_delayed.memory =
            zeros(l->attention_delayed.bytes = tp_attention_delayed_bytes(l->attention, &pass));
    return tp_params_init(ctx, l->param, l->params);
}

static void close_layer(layer *l)
{
    tp_linear_destroy(l->linear);
    tp_mlp_destroy(l->mlp);
    tp_attention_destroy(l->attention);
    free(l->mlp_saved.memory);
    free(l->attention_saved.memory);
    free(l->linear_delayed.memory);
    free(l->mlp_delayed.memory);
    free(l->attention_delayed.memory);
}

static tp_status forward(tp_ctx *ctx, layer *l, const tp_pass *pass, const tp_io *io)
{
    if (l->linear != NULL)
        return tp_linear_forward(ctx, l->linear, pass, io, &l->linear_saved);
    if (l->mlp != NULL)
        return tp_mlp_forward(ctx, l->mlp, pass, io, &l->mlp_saved);
    return tp_attention_forward(ctx, l->attention, pass, io, &l->attention_saved);
}

static tp_status backward_linear(tp_ctx *ctx, layer *l, const tp_pass *pass, const tp_io *io, way how)
{
    if (how == BOTH)
        return tp_linear_backward(ctx, l->linear, pass, io, &l->linear_saved);
    if (how == INPUT_FIRST) /* reads nothing that was saved */
        return tp_linear_backward_input(ctx, l->linear, pass, io, &l->linear_delayed);
    return tp_linear_backward_weight(ctx, l->linear, pass, &l->linear_saved, &l->linear_delayed);
}

static tp_status backward(tp_ctx *ctx, layer *l, const tp_pass *pass, const tp_io *io, way how)
{
    if (l->linear != NULL)
        return backward_linear(ctx, l, pass, io, how);
    if (l->mlp != NULL)
        return how == BOTH          ? tp_mlp_backward(ctx, l->mlp, pass, io, &l->mlp_saved)
               : how == INPUT_FIRST ? tp_mlp_backward_input(ctx, l->mlp, pass, io, &l->mlp_saved, &l->mlp_delayed)
                                    : tp_mlp_backward_weight(ctx, l->mlp, pass, &l->mlp_saved, &l->mlp_delayed);
    const tp_attention_saved *saved = &l->attention_saved;
    return how == BOTH          ? tp_attention_backward(ctx, l->attention, pass, io, saved)
           : how == INPUT_FIRST ? tp_attention_backward_input(ctx, l->attention, pass, io, saved, &l->attention_delayed)
                                : tp_attention_backward_weight(ctx, l->attention, pass, saved, &l->attention_delayed);
}

/* The tensors that forward saved. */
static int saved_tensors(layer *l, tp_tensor *out[5])
{
    int count = 0;
    if (l->linear != NULL)
        out[count++] = &l->linear_saved.x;
    if (l->mlp != NULL) {
        out[count++] = &l->mlp_saved.pre;
        out[count++] = &l->mlp_saved.act;
        out[count++] = &l->mlp_saved.up_input.x;
        out[count++] = &l->mlp_saved.down_input.x;
    }
    if (l->attention != NULL) {
        out[count++] = &l->attention_saved.qkv;
        out[count++] = &l->attention_saved.core;
        out[count++] = &l->attention_saved.lse;
        out[count++] = &l->attention_saved.qkv_input.x;
        out[count++] = &l->attention_saved.proj_input.x;
    }
    return count;
}

/* Those that backward_input left for backward_weight. */
static int delayed_tensors(layer *l, tp_tensor *out[2])
{
    out[0] = l->linear != NULL ? &l->linear_delayed.dy : l->mlp != NULL ? &l->mlp_delayed.up.dy
                                                                        : &l->attention_delayed.qkv.dy;
    out[1] = l->mlp != NULL ? &l->mlp_delayed.down.dy : &l->attention_delayed.proj.dy;
    return l->linear != NULL ? 1 : 2;
}

static tp_tensor spoil(tp_tensor saved, wrong how)
{
    if (how == LESS_ROWS)
        saved.shape[0]--;
    if (how == LESS_COLUMNS)
        saved.shape[1]--;
    if (how == OTHER_DTYPE)
        saved.dtype = TP_DTYPE_F16;
    if (how == NO_MEMORY)
        saved.data = NULL;
    return how == NOTHING_SAVED ? (tp_tensor){0} : saved;
}

static double gradient_sum(const layer *l)
{
    double sum = 0;
    for (int i = 0; i < l->params; i++)
        for (int64_t n = 0; n < tp_tensor_elements(l->param[i]->grad); n++)
            sum += ((const float *)l->param[i]->grad.data)[n];
    return sum;
}

/* Nothing is changed by a call that is refused. */
static void check_refused(tp_ctx *ctx, layer *l, const tp_pass *pass, const tp_io *io, way how)
{
    float *dx = io->out.data, before = dx[0];
    double sum = gradient_sum(l);
    tp_status status = backward(ctx, l, pass, io, how);
    cr_expect(status == TP_ERR_SHAPE || status == TP_ERR_DTYPE || status == TP_ERR_ARGUMENT,
              "layer %d, way %d: %s, %s", l->kind, how, tp_status_name(status), tp_last_message());
    bool named = strstr(tp_last_message(), "saved") || (how == WEIGHT && strstr(tp_last_message(), "delayed"));
    cr_expect(named && strstr(tp_last_message(), "layer"), "%s", tp_last_message());
    cr_expect_eq(tp_ctx_failure(ctx), TP_OK, "the context is broken: %s", tp_last_message());
    cr_expect(dx[0] == before && gradient_sum(l) == sum, "layer %d, way %d: something was changed", l->kind, how);
}

/* Rank 0 alone gives an output that doesn't fit. It is refused before anything moves: its peers wait for the right
 * call. */
static void check_one_refused(tp_ctx *ctx, layer *l, const tp_pass *pass, const tp_io *io, bool back, way how)
{
    tp_io narrow = *io;
    narrow.out.shape[1]--;
    if (tp_ctx_rank(ctx) != 0)
        return;
    tp_status status = back ? backward(ctx, l, pass, &narrow, how) : forward(ctx, l, pass, &narrow);
    cr_expect_eq(status, TP_ERR_SHAPE, "layer %d, back %d, way %d: %s, %s", l->kind, back, how, tp_status_name(status),
                 tp_last_message());
    cr_expect_eq(tp_ctx_failure(ctx), TP_OK, "the context is broken: %s", tp_last_message());
}

static tp_status run(tp_ctx *ctx, void *arg)
{
    const scene *s = arg;
    layer l;
    tp_status status = open_layer(ctx, s, &l);
    const tp_pass pass = {.tokens = TOKENS}, more = {.tokens = MORE};
    float *x = zeros(MOST * sizeof *x), *y = zeros(MOST * sizeof *y), *dx = zeros(MOST * sizeof *dx);
    for (int i = 0; i < MOST; i++)
        x[i] = y[i] = (float)(i % 7) - 3;
    tp_range own = tp_pass_rows(ctx, &pass, s->sequence_parallel), all = tp_pass_rows(ctx, &more, s->sequence_parallel);
    int64_t rows_in = s->kind == ROW ? TOKENS : own.end - own.begin,
            more_in = s->kind == ROW ? MORE : all.end - all.begin;
    int64_t rows_out = s->kind == COLUMN ? TOKENS : own.end - own.begin,
            more_out = s->kind == COLUMN ? MORE : all.end - all.begin;
    const tp_io there = {.in = tp_tensor_2d(x, TP_DTYPE_F32, rows_in, l.in),
                         .out = tp_tensor_2d(y, TP_DTYPE_F32, rows_out, l.out)};
    const tp_io back = {.in = there.out, .out = tp_tensor_2d(dx, TP_DTYPE_F32, rows_in, l.in)};
    const tp_io longer = {.in = tp_tensor_2d(y, TP_DTYPE_F32, more_out, l.out),
                          .out = tp_tensor_2d(dx, TP_DTYPE_F32, more_in, l.in)};
    check_one_refused(ctx, &l, &pass, &there, false, BOTH);
    if (status == TP_OK)
        status = forward(ctx, &l, &pass, &there);
    check_one_refused(ctx, &l, &pass, &back, true, INPUT_FIRST);
    if (status == TP_OK)
        status = backward(ctx, &l, &pass, &back, INPUT_FIRST);
    cr_assert_eq(status, TP_OK, "%s", tp_last_message());
    check_refused(ctx, &l, &more, &longer, BOTH); /* other tokens than forward's */
    tp_tensor *tensor[5];
    for (int i = saved_tensors(&l, tensor) - 1; i >= 0; i--)
        for (int how = 0; how < WRONGS * WAYS; how++) {
            const tp_tensor right = *tensor[i];
            if (l.linear != NULL && how % WAYS == INPUT_FIRST)
                continue;
            *tensor[i] = spoil(right, (wrong)(how / WAYS));
            check_refused(ctx, &l, &pass, &back, (way)(how % WAYS));
            *tensor[i] = right;
        }
    for (int i = delayed_tensors(&l, tensor) - 1; i >= 0; i--)
        for (int how = 0; how < WRONGS; how++) {
            const tp_tensor right = *tensor[i];
            *tensor[i] = spoil(right, (wrong)how);
            check_refused(ctx, &l, &pass, &back, WEIGHT);
            *tensor[i] = right;
        }
    status = backward(ctx, &l, &pass, &back, WEIGHT);
    check_one_refused(ctx, &l, &pass, &back, true, BOTH);
    if (status == TP_OK)
        status = backward(ctx, &l, &pass, &back, BOTH);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    close_layer(&l);
    free(x);
    free(y);
    free(dx);
    return status;
}

static void check(layer_kind kind, int ranks, bool sequence_parallel)
{
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_AUTO; overlap++) {
        scene s = {kind, (tp_overlap)overlap, sequence_parallel};
        const tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .timeout_ms = 20000}};
        cr_expect_eq(tp_run_ranks(&options, run, &s), TP_OK, "layer %d, %s, %d ranks: %s", kind,
                     tp_overlap_name((tp_overlap)overlap), ranks, tp_last_message());
    }
}

Test(saved, wrong_ones_are_refused_before_anything_is_changed, .timeout = 120)
{
    for (int kind = 0; kind < KINDS; kind++) {
        check((layer_kind)kind, 1, false);
        check((layer_kind)kind, 2, false);
        check((layer_kind)kind, 2, true);
    }
}
