#include "layouts.h"

#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/table.h"
#include "core/context.h"
#include "data.h"
#include "tolerance.h"
#include "support/devices.h"

void *tpt_case_input(const tpt_case *c)
{
    return tpt_new_normal(c->dtype, c->pass.tokens * c->in, c->seed + 1, 1.0);
}

void *tpt_case_residual(const tpt_case *c)
{
    return tpt_new_normal(c->dtype, c->pass.tokens * c->out, c->seed + 2, 1.0);
}

void *tpt_case_gradient(const tpt_case *c)
{
    return tpt_new_normal(c->dtype, c->pass.tokens * c->out, c->seed + 3, 1.0);
}

void *tpt_case_residual_gradient(const tpt_case *c)
{
    return tpt_new_normal(c->dtype, c->pass.tokens * c->in, c->seed + 4, 1.0);
}

typedef struct run_state {
    const tpt_case *c;
    const tpt_layout *layout;
    tpt_result *out;
    const char *x, *residual, *dy, *residual_gradient;
} run_state;

/* This rank's part of a global [tokens, features] tensor. */
typedef struct side {
    tp_range rows, cols;
    int64_t features;
} side;

static side side_of(tp_ctx *ctx, const run_state *s, bool cut, int64_t features)
{
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    side part = {{0, s->c->pass.tokens}, {0, features}, features};
    if (cut)
        part.cols = tp_shard_range(features, tp_comm_size(group), tp_comm_rank(group));
    else
        part.rows = tp_pass_rows(ctx, &s->c->pass, s->layout->sequence_parallel && s->c->table != NULL);
    return part;
}

/* A side's rows between a host array and a global one. */
static void copy_rows(const run_state *s, const side *part, char *local, char *global, bool to_global)
{
    int64_t cols = part->cols.end - part->cols.begin;
    size_t size = tp_dtype_size(s->c->dtype);
    for (int64_t r = part->rows.begin; r < part->rows.end; r++) {
        char *here = local + (size_t)((r - part->rows.begin) * cols) * size;
        char *there = global + (size_t)(r * part->features + part->cols.begin) * size;
        memcpy(to_global ? there : here, to_global ? here : there, (size_t)cols * size);
    }
}

/* New memory of the context: from the host; or, to be written, poisoned with NaN. A device's is left as it is: reading
 * what nobody wrote is reported. */
static tp_status new_memory(tp_ctx *ctx, const void *host, size_t bytes, void **out)
{
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, out);
    if (status != TP_OK || (host == NULL && !ctx->backend->host_memory))
        return status;
    char *poison = tpt_allocate(bytes);
    memset(poison, 0xff, bytes);
    status = tp_ctx_upload(ctx, *out, host != NULL ? host : poison, bytes);
    free(poison);
    return status;
}

static tp_status take(tp_ctx *ctx, const run_state *s, const side *part, const char *global, tp_tensor *out)
{
    int64_t rows = part->rows.end - part->rows.begin, cols = part->cols.end - part->cols.begin;
    *out = tp_tensor_2d(NULL, s->c->dtype, rows, cols);
    char *local = global != NULL ? tpt_array(s->c->dtype, rows * cols) : NULL;
    if (global != NULL)
        copy_rows(s, part, local, (char *)(uintptr_t)global, false);
    tp_status status = new_memory(ctx, local, tp_tensor_bytes(*out), &out->data);
    free(local);
    return status;
}

/* Ranks that hold the same elements write them in turn: all should bring the same. */
static tp_status put(tp_ctx *ctx, const run_state *s, const side *part, tp_tensor local, char *global)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char *host = tpt_allocate(tp_tensor_bytes(local));
    tp_status status = tp_ctx_download(ctx, host, local.data, tp_tensor_bytes(local));
    pthread_mutex_lock(&lock);
    if (status == TP_OK)
        copy_rows(s, part, host, global, true);
    pthread_mutex_unlock(&lock);
    free(host);
    return status;
}

static tp_status load_params(tp_ctx *ctx, const run_state *s, tp_param **params, int count)
{
    for (int i = 0; i < count; i++) {
        int64_t elements = tp_param_elements(params[i]);
        uint64_t seed = s->c->seed ^ tp_random_stream_name(params[i]->name);
        bool gain = params[i]->init == TP_INIT_ONE;
        float *values = gain ? tpt_new_uniform(TP_DTYPE_F32, elements, seed, 0.5, 1.5)
                             : tpt_new_normal(TP_DTYPE_F32, elements, seed, params[i]->dims == 2 ? 0.3 : 0.5);
        tp_status status = tp_param_load(ctx, params[i], values, TP_DTYPE_F32, NULL);
        free(values);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

static tp_status gather_params(tp_ctx *ctx, const run_state *s, tp_param **params, int count)
{
    for (int i = 0; i < count; i++) {
        int64_t elements = tp_param_elements(params[i]);
        float *value = tpt_array(TP_DTYPE_F32, elements), *grad = tpt_array(TP_DTYPE_F32, elements);
        tp_status status = tp_param_gather(ctx, params[i], 0, value);
        if (status == TP_OK)
            status = tp_param_gather(ctx, params[i], 1, grad);
        if (status == TP_OK && tp_ctx_rank(ctx) == 0) {
            snprintf(s->out->name[i], TP_PARAM_NAME, "%s", params[i]->name);
            s->out->elements[i] = elements;
            s->out->value[i] = value;
            s->out->grad[i] = grad;
            s->out->params = count;
        } else {
            free(value);
            free(grad);
        }
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

/* What a rank has for the passes; all of it from the context. */
typedef struct pass_memory {
    tp_tensor x, y, dy, dx, residual, dresidual;
    void *saved;
    size_t saved_bytes;
} pass_memory;

static tp_status make_memory(tp_ctx *ctx, const run_state *s, const side *in, const side *out, pass_memory *m)
{
    TPI_TRY(take(ctx, s, in, s->x, &m->x));
    TPI_TRY(take(ctx, s, out, NULL, &m->y));
    TPI_TRY(take(ctx, s, out, s->dy, &m->dy));
    TPI_TRY(take(ctx, s, in, NULL, &m->dx));
    if (s->c->residual)
        TPI_TRY(take(ctx, s, out, s->residual, &m->residual));
    if (s->c->residual_gradient)
        TPI_TRY(take(ctx, s, in, s->residual_gradient, &m->dresidual));
    return new_memory(ctx, NULL, m->saved_bytes, &m->saved);
}

static void free_memory(tp_ctx *ctx, const pass_memory *m)
{
    const tp_tensor *tensors[] = {&m->x, &m->y, &m->dy, &m->dx, &m->residual, &m->dresidual};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        if (tensors[i]->data != NULL)
            tp_ctx_release(ctx, TP_MEMORY_OTHER, tensors[i]->data, tp_tensor_bytes(*tensors[i]));
    if (m->saved != NULL)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, m->saved, m->saved_bytes);
}

static tp_status pass_through(tp_ctx *ctx, void *layer, const run_state *s, const side *in, const side *out,
                              const pass_memory *m)
{
    const tpt_case *c = s->c;
    tp_io io = {.in = m->x, .out = m->y, .residual = m->residual},
          back = {.in = m->dy, .out = m->dx, .residual = m->dresidual};
    if (s->layout->without_dx)
        back.out = tp_tensor_none();
    TPI_TRY(c->table->forward(ctx, layer, &c->pass, &io, NULL, 0, false));
    TPI_TRY(put(ctx, s, out, m->y, s->out->y_unsaved));
    for (int i = 0; i < (c->microbatches > 0 ? c->microbatches : 1); i++) {
        TPI_TRY(c->table->forward(ctx, layer, &c->pass, &io, m->saved, m->saved_bytes, true));
        TPI_TRY(
            (s->layout->split_backward ? c->table->backward_split : c->table->backward)(ctx, layer, &c->pass, &back));
    }
    TPI_TRY(tp_ctx_synchronize(ctx));
    TPI_TRY(put(ctx, s, out, m->y, s->out->y));
    return s->layout->without_dx ? TP_OK : put(ctx, s, in, m->dx, s->out->dx);
}

static tp_status run_passes(tp_ctx *ctx, void *layer, const run_state *s, const side *in, const side *out)
{
    pass_memory memory = {.saved_bytes = s->c->table->saved_bytes(layer, &s->c->pass)};
    tp_status status = make_memory(ctx, s, in, out, &memory);
    if (status == TP_OK)
        status = pass_through(ctx, layer, s, in, out, &memory);
    tp_ctx_synchronize(ctx);
    free_memory(ctx, &memory);
    return status;
}

/* Takes the gradients of frozen parameters away, or gives them back. */
static void exchange_gradients(const run_state *s, tp_param **params, int count, void **kept)
{
    for (int i = 0; i < count; i++)
        if ((s->layout->frozen >> (i / 2) & 1) && !(s->layout->keeps_biases && i % 2 == 1)) {
            void *data = params[i]->grad.data;
            params[i]->grad.data = kept[i];
            kept[i] = data;
        }
}

/* What a step before may have left behind. */
static tp_status begin_step(tp_ctx *ctx, tp_param **params, int count)
{
    TPI_TRY(tp_ctx_synchronize(ctx));
    for (int i = 0; i < count; i++)
        memset(params[i]->grad.data, 0xff, tp_tensor_bytes(params[i]->grad));
    return tp_params_begin(ctx, params, count);
}

static tp_status run_rank(tp_ctx *ctx, void *arg)
{
    run_state *s = arg;
    const tpt_case *c = s->c;
    void *layer = NULL;
    if (s->layout->issue_ahead)
        tpi_ctx_issue_ahead(ctx);
    ctx->pulling = (enum tpi_pulling)s->layout->pulling;
    if (s->layout->apart)
        tp_ctx_group(ctx, TP_AXIS_TP)->apart = true;
    tp_status status = c->table->create(ctx, c->desc, s->layout, &layer);
    if (status != TP_OK)
        return status;
    tp_param *params[TPT_MAX_PARAMS];
    int count = c->table->params(layer, params, TPT_MAX_PARAMS);
    side in = side_of(ctx, s, c->cut == TPT_CUT_INPUT, c->in), out = side_of(ctx, s, c->cut == TPT_CUT_OUTPUT, c->out);
    status = load_params(ctx, s, params, count);
    if (status == TP_OK && s->layout->begin)
        status = begin_step(ctx, params, count);
    void *kept[TPT_MAX_PARAMS] = {NULL};
    exchange_gradients(s, params, count, kept);
    if (status == TP_OK)
        status = run_passes(ctx, layer, s, &in, &out);
    exchange_gradients(s, params, count, kept);
    if (status == TP_OK)
        status = tp_params_finish(ctx, params, count);
    if (status == TP_OK)
        status = gather_params(ctx, s, params, count);
    float norm = 0;
    if (status == TP_OK)
        status = tp_params_grad_norm(ctx, params, count, &norm);
    if (tp_ctx_rank(ctx) == 0)
        s->out->grad_norm = norm;
    c->table->destroy(layer);
    return status;
}

tp_status tpt_case_try(const tpt_case *c, const tpt_layout *layout, tpt_result *out)
{
    *out = (tpt_result){.y = tpt_array(c->dtype, c->pass.tokens * c->out),
                        .y_unsaved = tpt_array(c->dtype, c->pass.tokens * c->out),
                        .dx = tpt_array(c->dtype, c->pass.tokens * c->in)};
    run_state state = {.c = c, .layout = layout, .out = out};
    char *x = tpt_case_input(c), *residual = tpt_case_residual(c), *dy = tpt_case_gradient(c),
         *dresidual = tpt_case_residual_gradient(c);
    state.x = x;
    state.residual = residual;
    state.dy = dy;
    state.residual_gradient = dresidual;
    tp_run_options options = {.ranks = layout->tp,
                              .devices = layout->devices,
                              .peer_kernels = layout->peer_kernels,
                              .ctx = {.device = layout->device,
                                      .plugin = layout->plugin,
                                      .sum_order = layout->sum_order,
                                      .tf32 = layout->tf32,
                                      .threads = layout->threads,
                                      .isa = layout->isa,
                                      .seed = 42,
                                      .lane_delay_seed = layout->lane_delay_seed,
                                      .machine = layout->machine,
                                      .timeout_ms = 60000}};
    tp_status status = tpt_run_ranks(&options, run_rank, &state);
    free(x), free(residual), free(dy), free(dresidual);
    return status;
}

void tpt_case_run(const tpt_case *c, const tpt_layout *layout, tpt_result *out)
{
    tp_status status = tpt_case_try(c, layout, out);
    cr_assert_eq(status, TP_OK, "%s at tp %d: %s: %s", c->name, layout->tp, tp_status_name(status), tp_last_message());
}

void tpt_result_free(tpt_result *result)
{
    free(result->y), free(result->y_unsaved), free(result->dx);
    for (int i = 0; i < result->params; i++)
        free(result->value[i]), free(result->grad[i]);
}

bool tpt_result_same(const tpt_case *c, const char *layout, const tpt_result *a, const tpt_result *b)
{
    char what[256];
    snprintf(what, sizeof what, "%s, %s: y", c->name, layout);
    bool same = tpt_same_bits(what, b->y, a->y, c->dtype, c->pass.tokens * c->out);
    snprintf(what, sizeof what, "%s, %s: y without saving", c->name, layout);
    same = tpt_same_bits(what, b->y_unsaved, a->y, c->dtype, c->pass.tokens * c->out) && same;
    snprintf(what, sizeof what, "%s, %s: dx", c->name, layout);
    same = tpt_same_bits(what, b->dx, a->dx, c->dtype, c->pass.tokens * c->in) && same;
    for (int i = 0; i < a->params; i++) {
        snprintf(what, sizeof what, "%s, %s: gradient of %s", c->name, layout, a->name[i]);
        same = tpt_same_bits(what, b->grad[i], a->grad[i], TP_DTYPE_F32, a->elements[i]) && same;
        snprintf(what, sizeof what, "%s, %s: value of %s", c->name, layout, a->name[i]);
        same = tpt_same_bits(what, b->value[i], a->value[i], TP_DTYPE_F32, a->elements[i]) && same;
    }
    snprintf(what, sizeof what, "%s, %s: gradient norm", c->name, layout);
    return tpt_same_bits(what, &b->grad_norm, &a->grad_norm, TP_DTYPE_F32, 1) && same;
}

/* Double copies of everything a reference reads. */
typedef struct reference_state {
    const tpt_case *c;
    tpt_reference reference;
    double *x, *dy, *y, *residual;
    double *param[TPT_MAX_PARAMS];
} reference_state;

static double *to_double(const void *data, tp_dtype dtype, int64_t count)
{
    double *out = tpt_allocate((size_t)count * sizeof(double));
    tpt_to_f64(out, data, dtype, count);
    return out;
}

static double reference_loss(reference_state *s)
{
    s->reference(s->c, s->x, s->param, s->y);
    double loss = 0;
    for (int64_t i = 0; i < s->c->pass.tokens * s->c->out; i++)
        loss += s->y[i] * s->dy[i];
    return loss * (s->c->microbatches > 0 ? s->c->microbatches : 1);
}

static double *differences(reference_state *s, double *values, int64_t count)
{
    double *gradient = tpt_allocate((size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        double keep = values[i], step = 1e-5 * fmax(1, fabs(keep));
        values[i] = keep + step;
        double up = reference_loss(s);
        values[i] = keep - step;
        gradient[i] = (up - reference_loss(s)) / (2 * step);
        values[i] = keep;
    }
    return gradient;
}

/* Relative error in the norm of a gradient that went through `depth` ops; central differences themselves are good to
 * about 1e-9. */
static double norm_tolerance(const tpt_case *c, int depth)
{
    int64_t inner = c->in > c->out ? c->in : c->out;
    if (c->tf32 && c->dtype == TP_DTYPE_F32)
        return depth * tpt_tolerance_tf32(inner, 1.0);
    return tpt_tolerance_chain(c->dtype, inner, depth, 1.0) + 1e-8;
}

static void check_array(const tpt_case *c, const char *what, const void *got, tp_dtype dtype, const double *want,
                        int64_t count, int depth)
{
    char label[256];
    snprintf(label, sizeof label, "%s: %s", c->name, what);
    cr_assert(tpt_close_norm(label, got, dtype, want, count, norm_tolerance(c, depth)), "%s differs from the reference",
              label);
}

void tpt_result_check(const tpt_case *c, const tpt_result *result, tpt_reference reference, int depth)
{
    int64_t in = c->pass.tokens * c->in, out = c->pass.tokens * c->out;
    void *x = tpt_case_input(c), *dy = tpt_case_gradient(c), *residual = tpt_case_residual(c);
    reference_state s = {
        .c = c, .reference = reference, .x = to_double(x, c->dtype, in), .dy = to_double(dy, c->dtype, out)};
    s.residual = to_double(residual, c->dtype, out);
    s.y = tpt_allocate((size_t)out * sizeof(double));
    for (int i = 0; i < result->params; i++)
        s.param[i] = to_double(result->value[i], TP_DTYPE_F32, result->elements[i]);
    reference(c, s.x, s.param, s.y);
    for (int64_t i = 0; c->residual && i < out; i++)
        s.y[i] += s.residual[i];
    check_array(c, "y", result->y, c->dtype, s.y, out, depth);
    double *gradient = differences(&s, s.x, in);
    void *added = tpt_case_residual_gradient(c);
    double *more = to_double(added, c->dtype, in);
    for (int64_t i = 0; c->residual_gradient && i < in; i++)
        gradient[i] += more[i];
    check_array(c, "dx", result->dx, c->dtype, gradient, in, 2 * depth);
    free(gradient), free(added), free(more);
    for (int i = 0; i < result->params; i++) {
        gradient = differences(&s, s.param[i], result->elements[i]);
        check_array(c, result->name[i], result->grad[i], TP_DTYPE_F32, gradient, result->elements[i], 2 * depth);
        free(gradient);
    }
    for (int i = 0; i < result->params; i++)
        free(s.param[i]);
    free(s.x), free(s.dy), free(s.y), free(s.residual), free(x), free(dy), free(residual);
}

/* Both are near the exact value, so they are twice as near to each other. */
static bool near(const tpt_case *c, const char *what, const void *got, const void *want, tp_dtype dtype, int64_t count,
                 int depth)
{
    double *exact = to_double(want, dtype, count);
    char label[256];
    snprintf(label, sizeof label, "%s: %s", c->name, what);
    bool close = tpt_close_norm(label, got, dtype, exact, count, 2.0 * norm_tolerance(c, depth));
    free(exact);
    return close;
}

bool tpt_result_near(const tpt_case *c, const tpt_result *got, const tpt_result *want, int depth)
{
    bool close = near(c, "y", got->y, want->y, c->dtype, c->pass.tokens * c->out, depth);
    close = near(c, "y without saving", got->y_unsaved, want->y, c->dtype, c->pass.tokens * c->out, depth) && close;
    close = near(c, "dx", got->dx, want->dx, c->dtype, c->pass.tokens * c->in, 2 * depth) && close;
    for (int i = 0; i < want->params; i++) {
        close = near(c, got->name[i], got->grad[i], want->grad[i], TP_DTYPE_F32, want->elements[i], 2 * depth) && close;
        close = tpt_same_bits(got->name[i], got->value[i], want->value[i], TP_DTYPE_F32, want->elements[i]) && close;
    }
    return close && near(c, "gradient norm", &got->grad_norm, &want->grad_norm, TP_DTYPE_F32, 1, 2 * depth);
}

void tpt_same_on_all_layouts(const tpt_case *c)
{
    static const tpt_layout layouts[] = {
        {.tp = 1, .threads = 2},
        {.tp = 1, .threads = 3, .split_backward = true, .begin = true},
        {.tp = 2, .threads = 1},
        {.tp = 2, .threads = 2, .sequence_parallel = true, .begin = true},
        {.tp = 4, .threads = 1, .sequence_parallel = true},
        {.tp = 4, .threads = 1, .lane_delay_seed = 7, .begin = true},
        {.tp = 4, .threads = 1, .lane_delay_seed = 13, .issue_ahead = true},
        {.tp = 8, .threads = 1},
        {.tp = 8, .threads = 1, .sequence_parallel = true, .split_backward = true},
        {.tp = 2, .threads = 1, .isa = TP_ISA_PORTABLE, .sequence_parallel = true},
    };
    tpt_result one, other;
    tpt_case_run(c, &(tpt_layout){.tp = 1, .threads = 1}, &one);
    cr_assert(tpt_same_bits("y without saving", one.y_unsaved, one.y, c->dtype, c->pass.tokens * c->out));
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        char name[96];
        snprintf(name, sizeof name, "tp %d, sequence parallelism %s, threads %d", layouts[i].tp,
                 layouts[i].sequence_parallel ? "on" : "off", layouts[i].threads);
        tpt_case_run(c, &layouts[i], &other);
        cr_assert(tpt_result_same(c, name, &one, &other), "%s: %s differs from one rank", c->name, name);
        tpt_result_free(&other);
    }
    tpt_result_free(&one);
}
