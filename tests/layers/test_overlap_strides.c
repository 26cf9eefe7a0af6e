/* Rows of the caller's tensors that lie apart give the bits of dense ones, under every overlap algorithm, and what lies
 * between them stays; also where what is written is the residual. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "core/context.h"

enum { TOKENS = 13, RANKS = 3, GAP = 3, MOST_PARAMS = 4, BETWEEN = 0x5a };

typedef enum layer_kind { COLUMN, ROW, MLP, LAYER_KINDS } layer_kind;

typedef struct scene {
    layer_kind kind;
    tp_overlap overlap;
    bool sequence_parallel, split, ahead, wants_input;
    bool in_place; /* outputs are the residuals */
    tp_linear *linear;
    tp_mlp *mlp;
} scene;

/* One matrix, its rows `stride` apart. */
static tp_tensor make_matrix(int64_t rows, int64_t cols, int64_t stride, int seed)
{
    size_t count = (size_t)(rows * stride) + 1;
    float *memory = malloc(count * sizeof *memory);
    cr_assert_not_null(memory);
    memset(memory, BETWEEN, count * sizeof *memory);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            memory[r * stride + c] = (float)((r * 31 + c * 17 + seed * 7) % 23 - 11) / 8;
    tp_tensor tensor = tp_tensor_2d(memory, TP_DTYPE_F32, rows, cols);
    tensor.stride[0] = stride;
    return tensor;
}

/* Of one pass: forward's tensors and backward's. */
typedef struct tensors {
    tp_tensor x, y, residual, dy, dx, dresidual;
} tensors;

static tensors make_tensors(int64_t rows_in, int64_t in, int64_t rows_out, int64_t out, int64_t gap)
{
    return (tensors){.x = make_matrix(rows_in, in, in + gap, 1),
                     .y = make_matrix(rows_out, out, out + gap, 2),
                     .residual = make_matrix(rows_out, out, out + 2 * gap, 3),
                     .dy = make_matrix(rows_out, out, out + gap, 4),
                     .dx = make_matrix(rows_in, in, in + 2 * gap, 5),
                     .dresidual = make_matrix(rows_in, in, in + gap, 6)};
}

static void write_residuals(tensors *t, bool backward)
{
    free(t->y.data);
    t->y = t->residual;
    if (!backward)
        return;
    free(t->dx.data);
    t->dx = t->dresidual;
}

static void free_tensors(tensors *t)
{
    tp_tensor *const all[] = {&t->x, &t->residual, &t->dy, &t->dresidual};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]->data);
    if (t->y.data != t->residual.data)
        free(t->y.data);
    if (t->dx.data != t->dresidual.data)
        free(t->dx.data);
}

static tp_status run_linear(tp_ctx *ctx, const scene *s, const tp_pass *pass, const tp_io *forward,
                            const tp_io *backward)
{
    tp_linear_saved saved;
    void *memory = aligned_alloc(64, (tp_linear_delayed_bytes(s->linear, pass) + 127) / 64 * 64);
    tp_linear_delayed delayed = {.memory = memory, .bytes = tp_linear_delayed_bytes(s->linear, pass)};
    tp_status status = tp_linear_forward(ctx, s->linear, pass, forward, &saved);
    if (status == TP_OK && !s->split)
        status = tp_linear_backward(ctx, s->linear, pass, backward, &saved);
    if (status == TP_OK && s->split)
        status = tp_linear_backward_input(ctx, s->linear, pass, backward, &delayed);
    if (status == TP_OK && s->split)
        status = tp_linear_backward_weight(ctx, s->linear, pass, &saved, &delayed);
    tp_status done = tp_ctx_synchronize(ctx);
    free(memory);
    return status != TP_OK ? status : done;
}

static tp_status run_mlp(tp_ctx *ctx, const scene *s, const tp_pass *pass, const tp_io *forward, const tp_io *backward)
{
    size_t bytes = tp_mlp_saved_bytes(s->mlp, pass);
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    tp_mlp_saved saved = {.memory = memory, .bytes = bytes};
    tp_status status = tp_mlp_forward(ctx, s->mlp, pass, forward, &saved);
    if (status == TP_OK)
        status = tp_mlp_backward(ctx, s->mlp, pass, backward, &saved);
    tp_status done = tp_ctx_synchronize(ctx);
    free(memory);
    return status != TP_OK ? status : done;
}

static tp_status run_pass(tp_ctx *ctx, const scene *s, const tp_pass *pass, const tensors *t)
{
    const tp_io forward = {.in = t->x, .out = t->y, .residual = s->kind == COLUMN ? tp_tensor_none() : t->residual};
    const tp_io backward = {.in = t->dy,
                            .out = s->wants_input ? t->dx : tp_tensor_none(),
                            .residual = s->wants_input ? t->dresidual : tp_tensor_none()};
    return s->kind == MLP ? run_mlp(ctx, s, pass, &forward, &backward) : run_linear(ctx, s, pass, &forward, &backward);
}

static bool same_rows(const tp_tensor *a, const tp_tensor *b)
{
    const float *x = a->data, *y = b->data;
    float between;
    memset(&between, BETWEEN, sizeof between);
    for (int64_t r = 0; r < a->shape[0]; r++) {
        if (memcmp(x + r * a->stride[0], y + r * b->stride[0], (size_t)a->shape[1] * sizeof *x) != 0)
            return false;
        for (int64_t c = b->shape[1]; c < b->stride[0]; c++)
            if (memcmp(y + r * b->stride[0] + c, &between, sizeof between) != 0)
                return false;
    }
    return true;
}

static tp_status make_layer(tp_ctx *ctx, scene *s, tp_param **param, int *params)
{
    static const char name[] = "layer";
    const tp_linear_desc linear = {.name = name,
                                   .kind = s->kind == ROW ? TP_LINEAR_ROW : TP_LINEAR_COLUMN,
                                   .in_features = 14,
                                   .out_features = 17,
                                   .dtype = TP_DTYPE_F32,
                                   .bias = true,
                                   .sequence_parallel = s->sequence_parallel,
                                   .overlap = s->overlap,
                                   .chunks = 2,
                                   .dropout = s->kind == ROW ? 0.25f : 0,
                                   .site = 3};
    const tp_mlp_desc mlp = {.name = name, .hidden = 14, .ffn = 19, .activation = TP_ACTIVATION_SWIGLU,
                             .dtype = TP_DTYPE_F32, .bias = true,
                             .sequence_parallel = s->sequence_parallel, .overlap = s->overlap, .chunks = 2};
    tp_status status = s->kind == MLP ? tp_mlp_create(ctx, &mlp, &s->mlp) : tp_linear_create(ctx, &linear, &s->linear);
    if (status != TP_OK)
        return status;
    *params = s->kind == MLP ? tp_mlp_params(s->mlp, param, MOST_PARAMS)
                             : tp_linear_params(s->linear, param, MOST_PARAMS);
    return tp_params_init(ctx, param, *params);
}

static tp_status sum_gradients(tp_ctx *ctx, tp_param *const *param, int params, float *out)
{
    for (int i = 0; i < params; i++) {
        memcpy(out, param[i]->grad.data, tp_tensor_bytes(param[i]->grad));
        out += tp_tensor_elements(param[i]->grad);
    }
    tp_status status = tp_params_zero_grad(ctx, (tp_param **)(uintptr_t)param, params);
    return status != TP_OK ? status : tp_ctx_synchronize(ctx); /* before the caller destroys the layer */
}

static tp_status compare(tp_ctx *ctx, void *arg)
{
    scene s = *(const scene *)arg;
    tp_param *param[MOST_PARAMS];
    int params = 0;
    static const int64_t most = 2048;
    float *gradients = calloc(2 * (size_t)most, sizeof *gradients);
    if (s.ahead)
        tpi_ctx_issue_ahead(ctx);
    tp_status status = make_layer(ctx, &s, param, &params);
    const tp_pass pass = {.tokens = TOKENS, .first_token = 5};
    tp_range own = tp_pass_rows(ctx, &pass, s.sequence_parallel);
    int64_t mine = own.end - own.begin, local = s.kind == MLP ? 0 : tp_linear_local_features(s.linear);
    tensors t[2];
    for (int i = 0; i < 2; i++)
        t[i] = make_tensors(s.kind == ROW ? TOKENS : mine, s.kind == ROW ? local : 14, s.kind == COLUMN ? TOKENS : mine,
                            s.kind == COLUMN ? local : s.kind == ROW ? 17 : 14, i * GAP);
    if (s.in_place)
        write_residuals(&t[1], s.wants_input);
    for (int i = 0; i < 2 && status == TP_OK; i++) {
        status = tp_params_zero_grad(ctx, param, params);
        if (status == TP_OK)
            status = run_pass(ctx, &s, &pass, &t[i]);
        if (status == TP_OK)
            status = sum_gradients(ctx, param, params, gradients + i * most);
    }
    cr_expect_eq(status, TP_OK, "%s, kind %d: %s", tp_overlap_name(s.overlap), (int)s.kind, tp_ctx_message(ctx));
    bool same = status != TP_OK || (same_rows(&t[0].y, &t[1].y) && same_rows(&t[0].dx, &t[1].dx));
    same = same && memcmp(gradients, gradients + most, (size_t)most * sizeof *gradients) == 0;
    cr_expect(same, "%s, kind %d, sequence parallelism %d, split %d, ahead %d, in place %d, rank %d",
              tp_overlap_name(s.overlap), (int)s.kind, (int)s.sequence_parallel, (int)s.split, (int)s.ahead,
              (int)s.in_place, tp_ctx_rank(ctx));
    free_tensors(&t[0]);
    free_tensors(&t[1]);
    free(gradients);
    tp_linear_destroy(s.linear);
    tp_mlp_destroy(s.mlp);
    return status;
}

static void check(layer_kind kind)
{
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_AUTO; overlap++)
        for (int i = 0; i < 16; i++) {
            scene s = {.kind = kind, .overlap = (tp_overlap)overlap, .sequence_parallel = i & 1, .split = i & 2,
                       .ahead = i & 4, .wants_input = i < 8 || i & 2, .in_place = i % 4 == 1 || i % 5 == 0};
            const tp_run_options options = {
                .ranks = RANKS, .ctx = {.threads = 1, .lane_delay_seed = i % 5 == 4 ? 7 : 0, .timeout_ms = 20000}};
            tp_run_ranks(&options, compare, &s);
        }
}

Test(overlap_strides, column, .timeout = 120)
{
    check(COLUMN);
}

Test(overlap_strides, row, .timeout = 120)
{
    check(ROW);
}

Test(overlap_strides, mlp, .timeout = 120)
{
    check(MLP);
}
