/* SGD and AdamW over a list of parameters. */
#include "train/optimizer.h"

#include <math.h>

#include "core/context.h"
#include "train/norm.h"
#include "train/param.h"

/* State of one parameter; NULL where the kind or the dtype has none. */
typedef struct optimizer_state {
    tpi_param_listener listener; /* first */
    tp_param *param; /* NULL: it was destroyed */
    int64_t elements;
    float *master, *m, *v;
} optimizer_state;

/* What the last step's verdict reads and writes, in memory that streams copy to and from and the host reads one step
 * later. */
typedef struct optimizer_verdict {
    float scale; /* what gradients are multiplied by; 0: the step is skipped */
    float norm;
    float squares[]; /* [count] */
} optimizer_verdict;

struct tp_optimizer {
    tp_ctx *ctx;
    tp_optimizer_desc desc;
    int count;
    tp_param **params;
    optimizer_state *state;
    tpi_norm_order *orders;
    float *squares; /* [count] */
    float *scale;   /* as ops read it */
    optimizer_verdict *verdict;
    tpi_event *settled; /* recorded behind the last step's verdict */
    int64_t steps; /* that counted, the pending one not included */
    bool pending;  /* the last step's verdict was not read yet */
};

static tp_status check_field(tp_ctx *ctx, const char *field, double value, double limit)
{
    if (value >= 0.0 && value < limit)
        return TP_OK;
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "optimizer: %s is %g, must be in [0, %g)", field, value, limit);
}

tp_status tpi_optimizer_check(tp_ctx *ctx, const tp_optimizer_desc *desc)
{
    TPI_TRY(tpi_given(ctx, "optimizer: desc", desc));
    if (desc->kind != TP_OPTIMIZER_SGD && desc->kind != TP_OPTIMIZER_ADAMW)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "optimizer: kind is %d, must be %d or %d", (int)desc->kind,
                          (int)TP_OPTIMIZER_SGD, (int)TP_OPTIMIZER_ADAMW);
    TPI_TRY(check_field(ctx, "beta1", desc->beta1, 1.0));
    TPI_TRY(check_field(ctx, "beta2", desc->beta2, 1.0));
    TPI_TRY(check_field(ctx, "epsilon", desc->epsilon, INFINITY));
    TPI_TRY(check_field(ctx, "decay", desc->decay, INFINITY));
    TPI_TRY(check_field(ctx, "momentum", desc->momentum, 1.0));
    return check_field(ctx, "clip_norm", desc->clip_norm, INFINITY);
}

static tp_optimizer_desc resolved(const tp_optimizer_desc *desc)
{
    tp_optimizer_desc out = *desc;
    if (out.beta1 == 0.0f)
        out.beta1 = 0.9f;
    if (out.beta2 == 0.0f)
        out.beta2 = 0.95f;
    if (out.epsilon == 0.0f)
        out.epsilon = 1e-8f;
    return out;
}

static tp_status fill(tp_ctx *ctx, float *out, int64_t elements, const void *in, tp_dtype in_dtype)
{
    return tpi_map(ctx->compute, &(tpi_map_args){.rows = 1,
                                                 .cols = elements,
                                                 .in = in,
                                                 .in_dtype = in_dtype,
                                                 .in_stride = elements,
                                                 .out = out,
                                                 .out_dtype = TP_DTYPE_F32,
                                                 .out_stride = elements});
}

/* Takes the master from a value that was written from outside. */
static tp_status take_master(tp_ctx *ctx, const optimizer_state *state)
{
    if (state->master == NULL)
        return TP_OK;
    return fill(ctx, state->master, state->elements, state->param->value.data, state->param->value.dtype);
}

static void hear(tpi_param_listener *listener, tp_ctx *ctx, bool gone)
{
    optimizer_state *state = (optimizer_state *)listener;
    if (gone)
        state->param = NULL;
    else
        take_master(ctx, state);
}

static tp_status allocate_floats(tp_ctx *ctx, tp_memory_kind kind, int64_t elements, float **out)
{
    void *memory;
    TPI_TRY(tp_ctx_allocate(ctx, kind, (size_t)elements * sizeof(float), &memory));
    *out = memory;
    return TP_OK;
}

static void release_floats(tp_ctx *ctx, tp_memory_kind kind, int64_t elements, float *memory)
{
    if (memory != NULL)
        tp_ctx_release(ctx, kind, memory, (size_t)elements * sizeof(float));
}

static bool has_m(const tp_optimizer_desc *desc)
{
    return desc->kind == TP_OPTIMIZER_ADAMW || desc->momentum > 0.0f;
}

static tp_status create_state(tp_optimizer *optimizer, tp_param *param, optimizer_state *state)
{
    tp_ctx *ctx = optimizer->ctx;
    state->param = param;
    state->elements = tp_tensor_elements(param->value);
    state->listener = (tpi_param_listener){.tell = hear};
    tpi_param_listen(param, &state->listener);
    if (param->grad.dims == 0) /* frozen for good */
        return TP_OK;
    if (has_m(&optimizer->desc)) {
        TPI_TRY(allocate_floats(ctx, TP_MEMORY_OPTIMIZER, state->elements, &state->m));
        TPI_TRY(fill(ctx, state->m, state->elements, NULL, TP_DTYPE_F32));
    }
    if (optimizer->desc.kind == TP_OPTIMIZER_ADAMW) {
        TPI_TRY(allocate_floats(ctx, TP_MEMORY_OPTIMIZER, state->elements, &state->v));
        TPI_TRY(fill(ctx, state->v, state->elements, NULL, TP_DTYPE_F32));
    }
    if (param->value.dtype != TP_DTYPE_F32) {
        TPI_TRY(allocate_floats(ctx, TP_MEMORY_PARAM, state->elements, &state->master));
        state->listener.master = true;
        TPI_TRY(take_master(ctx, state));
    }
    return TP_OK;
}

static void destroy_state(tp_ctx *ctx, optimizer_state *state)
{
    release_floats(ctx, TP_MEMORY_OPTIMIZER, state->elements, state->m);
    release_floats(ctx, TP_MEMORY_OPTIMIZER, state->elements, state->v);
    release_floats(ctx, TP_MEMORY_PARAM, state->elements, state->master);
    if (state->param != NULL)
        tpi_param_ignore(state->param, &state->listener);
}

static size_t verdict_bytes(int count)
{
    return sizeof(optimizer_verdict) + (size_t)count * sizeof(float);
}

static tp_status create_lists(tp_optimizer *optimizer, tp_param *const *params, int count)
{
    tp_ctx *ctx = optimizer->ctx;
    size_t length = (size_t)count;
    optimizer->params = tpi_host_allocate(ctx, length * sizeof *optimizer->params);
    optimizer->state = tpi_host_allocate(ctx, length * sizeof *optimizer->state);
    optimizer->orders = tpi_host_allocate(ctx, length * sizeof *optimizer->orders);
    if (optimizer->params == NULL || optimizer->state == NULL || optimizer->orders == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "optimizer: no memory for a list of %d parameters", count);
    for (int i = 0; i < count; i++)
        optimizer->params[i] = params[i];
    tpi_norm_orders(ctx, params, count, optimizer->orders);

    TPI_TRY(allocate_floats(ctx, TP_MEMORY_OPTIMIZER, count, &optimizer->squares));
    TPI_TRY(allocate_floats(ctx, TP_MEMORY_OPTIMIZER, 1, &optimizer->scale));
    optimizer->verdict = ctx->backend->allocate_shared(ctx, verdict_bytes(count));
    if (optimizer->verdict == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "optimizer: no memory for a verdict on %d parameters", count);
    TPI_TRY(ctx->backend->event_create(ctx, &optimizer->settled));
    for (int i = 0; i < count; i++)
        TPI_TRY(create_state(optimizer, params[i], &optimizer->state[i]));
    return TP_OK;
}

/* One of bf16 or f16 can have one master only. */
static tp_status check_params(tp_ctx *ctx, tp_param *const *params, int count)
{
    if (count < 1 || params == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "optimizer: count is %d, at least 1 parameter is needed", count);
    TPI_TRY(tpi_params_check(ctx, "tp_optimizer_create", params, count));
    for (int i = 0; i < count; i++)
        if (tpi_param_has_master(params[i]))
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "optimizer: parameter '%s' has another optimizer", params[i]->name);
    return TP_OK;
}

tp_status tp_optimizer_create(tp_ctx *ctx, const tp_optimizer_desc *desc, tp_param *const *params, int count,
                              tp_optimizer **out)
{
    TPI_TRY(tpi_given(ctx, "tp_optimizer_create: out", out));
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_optimizer_check(ctx, desc));
    TPI_TRY(check_params(ctx, params, count));
    tp_optimizer *optimizer = tpi_host_allocate(ctx, sizeof *optimizer);
    if (optimizer == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "optimizer: out of memory");
    optimizer->ctx = ctx;
    optimizer->desc = resolved(desc);
    optimizer->count = count;
    tp_status status = create_lists(optimizer, params, count);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    if (status != TP_OK) {
        tp_optimizer_destroy(optimizer);
        return status;
    }
    *out = optimizer;
    return TP_OK;
}

static void release_list(tp_ctx *ctx, void *list, int count, size_t size)
{
    if (list != NULL)
        tpi_host_release(ctx, list, (size_t)count * size);
}

void tp_optimizer_destroy(tp_optimizer *optimizer)
{
    if (optimizer == NULL)
        return;
    tp_ctx *ctx = optimizer->ctx;
    tp_ctx_synchronize(ctx);
    for (int i = 0; i < optimizer->count && optimizer->state != NULL; i++)
        destroy_state(ctx, &optimizer->state[i]);
    release_floats(ctx, TP_MEMORY_OPTIMIZER, optimizer->count, optimizer->squares);
    release_floats(ctx, TP_MEMORY_OPTIMIZER, 1, optimizer->scale);
    if (optimizer->verdict != NULL)
        ctx->backend->release_shared(ctx, optimizer->verdict, verdict_bytes(optimizer->count));
    if (optimizer->settled != NULL)
        ctx->backend->event_destroy(optimizer->settled);
    release_list(ctx, optimizer->params, optimizer->count, sizeof *optimizer->params);
    release_list(ctx, optimizer->state, optimizer->count, sizeof *optimizer->state);
    release_list(ctx, optimizer->orders, optimizer->count, sizeof *optimizer->orders);
    tpi_host_release(ctx, optimizer, sizeof *optimizer);
}

/* Reads whether the last step counted. One step late, so that the host never waits for the step that it has just
 * issued. */
static tp_status settle(tp_optimizer *optimizer)
{
    if (!optimizer->pending)
        return TP_OK;
    TPI_TRY(optimizer->ctx->backend->event_synchronize(optimizer->ctx, optimizer->settled));
    optimizer->pending = false;
    optimizer->steps += optimizer->verdict->scale != 0.0f;
    return TP_OK;
}

tp_status tpi_optimizer_steps(tp_optimizer *optimizer, int64_t *steps)
{
    TPI_TRY(settle(optimizer));
    *steps = optimizer->steps;
    return TP_OK;
}

typedef struct verdict_args {
    optimizer_verdict *verdict;
    int count;
    float clip_norm;
} verdict_args;

/* Runs in stream order: norm of all gradients, and by what they are multiplied. Equal on all ranks, as the squares
 * are. */
static tp_status decide(tp_ctx *ctx, const void *memory)
{
    (void)ctx;
    const verdict_args *args = memory;
    optimizer_verdict *out = args->verdict;
    float norm = tpi_norm_root(out->squares, args->count);
    out->norm = norm;
    if (!isfinite(norm))
        out->scale = 0.0f;
    else if (args->clip_norm > 0.0f && norm > args->clip_norm)
        out->scale = args->clip_norm / norm;
    else
        out->scale = 1.0f;
    return TP_OK;
}

static tp_status issue_verdict(tp_ctx *ctx, tp_optimizer *optimizer)
{
    const tpi_backend *backend = ctx->backend;
    size_t bytes = (size_t)optimizer->count * sizeof(float);
    const verdict_args args = {optimizer->verdict, optimizer->count, optimizer->desc.clip_norm};
    TPI_TRY(backend->copy(ctx->compute, optimizer->verdict->squares, optimizer->squares, bytes, TPI_COPY_DOWN));
    TPI_TRY(backend->run(ctx->compute, decide, &args, sizeof args));
    TPI_TRY(backend->copy(ctx->compute, optimizer->scale, &optimizer->verdict->scale, sizeof(float), TPI_COPY_SHARED));
    TPI_TRY(backend->event_record(optimizer->settled, ctx->compute));
    optimizer->pending = true;
    return TP_OK;
}

static tpi_optimizer_args update_of(const tp_optimizer *optimizer, const optimizer_state *state, float lr)
{
    const tp_param *param = state->param;
    const tp_optimizer_desc *desc = &optimizer->desc;
    return (tpi_optimizer_args){.kind = desc->kind == TP_OPTIMIZER_ADAMW ? TPI_OPTIMIZER_ADAMW : TPI_OPTIMIZER_SGD,
                                .elements = state->elements,
                                .master = state->master,
                                .value = param->value.data,
                                .value_dtype = param->value.dtype,
                                .grad = param->grad.data,
                                .m = state->m,
                                .v = state->v,
                                .grad_scale = optimizer->scale,
                                .lr = lr,
                                .beta1 = desc->beta1,
                                .beta2 = desc->beta2,
                                .epsilon = desc->epsilon,
                                .decay = param->flags & TP_PARAM_DECAY ? desc->decay : 0.0f,
                                .momentum = desc->momentum,
                                .step = optimizer->steps + 1,
                                .copies = tpi_param_copies(param)};
}

static bool learns(const tp_param *param)
{
    return !(param->flags & TP_PARAM_FROZEN);
}

/* Updates that are issued together, where the backend gains by it. */
#define UPDATES 128

static tp_status update_all(tp_optimizer *optimizer, float lr)
{
    tp_ctx *ctx = optimizer->ctx;
    tpi_optimizer_args updates[UPDATES];
    int waiting = 0;
    for (int i = 0; i < optimizer->count; i++) {
        const optimizer_state *state = &optimizer->state[i];
        if (learns(state->param))
            updates[waiting++] = update_of(optimizer, state, lr);
        if (waiting < UPDATES && i < optimizer->count - 1)
            continue;
        TPI_TRY(tpi_optimizer_list(ctx->compute, updates, waiting));
        waiting = 0;
    }
    return TP_OK;
}

/* Who was created frozen has no gradient to learn from. */
static tp_status check_learning(tp_ctx *ctx, const tp_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->count; i++) {
        const tp_param *param = optimizer->state[i].param;
        if (param == NULL)
            return tpi_refuse(ctx, TP_ERR_STATE, "optimizer: params[%d] of %d was destroyed", i, optimizer->count);
        if (learns(param) && param->grad.dims == 0)
            return tpi_refuse(ctx, TP_ERR_STATE,
                              "optimizer: parameter '%s' was created frozen and has no gradient: it can't learn",
                              param->name);
    }
    return TP_OK;
}

tp_status tp_optimizer_step(tp_ctx *ctx, tp_optimizer *optimizer, float lr, tp_step_report *report)
{
    TPI_TRY_OBJECT(ctx, "tp_optimizer_step: optimizer", optimizer);
    TPI_TRY(check_field(ctx, "lr", lr, INFINITY));
    TPI_TRY(tpi_not_capturing(ctx, "tp_optimizer_step"));
    TPI_TRY(check_learning(ctx, optimizer));
    TPI_TRY(settle(optimizer));
    TPI_TRY(tpi_norm_squares(ctx, optimizer->params, optimizer->count, optimizer->orders, optimizer->squares));
    TPI_TRY(issue_verdict(ctx, optimizer));
    TPI_TRY(update_all(optimizer, lr));
    if (report == NULL)
        return TP_OK;
    TPI_TRY(settle(optimizer));
    *report = (tp_step_report){optimizer->verdict->norm, optimizer->verdict->scale == 0.0f, optimizer->steps};
    return TP_OK;
}

tp_status tp_optimizer_state(tp_optimizer *optimizer, const tp_param *param, float **master, float **m, float **v,
                             int64_t *step)
{
    TPI_TRY(tpi_given(NULL, "tp_optimizer_state: optimizer", optimizer));
    TPI_TRY(tpi_given(optimizer->ctx, "tp_optimizer_state: param", param));
    TPI_TRY(settle(optimizer));
    for (int i = 0; i < optimizer->count; i++) {
        const optimizer_state *state = &optimizer->state[i];
        if (state->param != param)
            continue;
        if (master != NULL)
            *master =
                state->master != NULL ? state->master : param->value.dtype == TP_DTYPE_F32 ? param->value.data : NULL;
        if (m != NULL)
            *m = state->m;
        if (v != NULL)
            *v = state->v;
        if (step != NULL)
            *step = optimizer->steps;
        return TP_OK;
    }
    return tpi_refuse(optimizer->ctx, TP_ERR_ARGUMENT, "optimizer: parameter '%s' is none of its %d", param->name,
                      optimizer->count);
}
