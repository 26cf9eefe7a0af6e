/* AdamW and SGD. */
#include "cpu/machines.h"

/* out: value in dtype (8-byte aligned end), master, m, v; each [elements]. */
typedef struct optimizer_case {
    tpi_optimizer_args args;
    bool master, m;
    int steps;
} optimizer_case;

typedef struct optimizer_state {
    void *value;
    float *master, *m, *v;
} optimizer_state;

static size_t value_bytes(const optimizer_case *c)
{
    return ((size_t)c->args.elements * tp_dtype_size(c->args.value_dtype) + 7) / 8 * 8;
}

static size_t state_bytes(const optimizer_case *c)
{
    return value_bytes(c) + 3 * (size_t)c->args.elements * sizeof(float);
}

static optimizer_state state_at(const optimizer_case *c, void *out)
{
    float *floats = (float *)(void *)((char *)out + value_bytes(c));
    int64_t n = c->args.elements;

    return (optimizer_state){out, floats, floats + n, floats + 2 * n};
}

static const float ONE = 1;

static tp_status run_optimizer(tp_ctx *ctx, const void *test, void *out)
{
    const optimizer_case *c = test;
    optimizer_state state = state_at(c, out);
    tp_status status = TP_OK;

    for (int step = 1; step <= c->steps && status == TP_OK; step++) {
        tpi_optimizer_args args = c->args;

        args.value = state.value;
        args.master = c->master ? state.master : NULL;
        args.m = c->m ? state.m : NULL;
        args.v = state.v;
        if (!args.grad_scale)
            args.grad_scale = &ONE;
        args.step = step;
        status = tpi_optimizer(ctx->compute, &args);
    }
    return status;
}

/* Values and masters drawn, moments zero. */
static void *state_new(const optimizer_case *c)
{
    void *memory = tpt_allocate(state_bytes(c));
    optimizer_state state = state_at(c, memory);

    tpt_fill_normal(state.value, c->args.value_dtype, c->args.elements, 1, 1);
    tpt_to_f32(state.master, state.value, c->args.value_dtype, c->args.elements);
    return memory;
}

/* One element in double. */
static double moved(const optimizer_case *c, double w, double grad)
{
    const tpi_optimizer_args *a = &c->args;
    double m = 0, v = 0, g = grad * (double)*a->grad_scale, b1 = (double)a->beta1, b2 = (double)a->beta2;

    for (int step = 1; step <= c->steps; step++) {
        double direction = g;

        if (a->kind == TPI_OPTIMIZER_ADAMW) {
            m = b1 * m + (1 - b1) * g;
            v = b2 * v + (1 - b2) * g * g;
            direction = m / (1 - pow(b1, step)) / (sqrt(v / (1 - pow(b2, step))) + (double)a->epsilon);
        } else if (c->m) {
            direction = m = (double)a->momentum * m + g;
        }
        w -= (double)a->lr * (direction + (double)a->decay * w);
    }
    return w;
}

static void check_optimizer(const machines *all, optimizer_case c)
{
    void *before = state_new(&c), *got;
    float *grad = tpt_new_normal(TP_DTYPE_F32, c.args.elements, 2, 1);
    optimizer_state old = state_at(&c, before), state;

    c.args.grad = grad;
    if (!c.args.grad_scale)
        c.args.grad_scale = &ONE;
    got = machines_run(all, run_optimizer, &c, before, state_bytes(&c));
    state = state_at(&c, got);
    for (int64_t i = 0; i < c.args.elements; i++) {
        double start = tpt_get(old.value, c.args.value_dtype, i), want = moved(&c, start, (double)grad[i]);
        double tolerance =
            tpt_tolerance(TP_DTYPE_F32, 8 * c.steps, fabs(want) + fabs(want - start)); /* 8: roundings of a step */

        if (c.master) {
            cr_assert_float_eq(state.master[i], want, tolerance);
            tpt_set(old.value, c.args.value_dtype, i, (double)state.master[i]);
        } else {
            cr_assert_float_eq(tpt_get(state.value, TP_DTYPE_F32, i), want, tolerance);
        }
    }
    if (c.master)
        cr_assert(
            tpt_same_bits("value is the rounded master", state.value, old.value, c.args.value_dtype, c.args.elements));
    free(before);
    free(grad);
    free(got);
}

static const tpi_optimizer_args ADAMW = {
    .kind = TPI_OPTIMIZER_ADAMW, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .decay = 0.1f};
static const tpi_optimizer_args SGD = {.kind = TPI_OPTIMIZER_SGD, .lr = 0.05f, .decay = 0.01f, .momentum = 0.9f};

Test(optimizer, steps_agree_with_double)
{
    static const int64_t sizes[] = {0, 1, 17, 40009};
    static const float scale = 0.5f;
    machines all = machines_open();

    for (int s = 0; s < 4; s++) {
        for (int d = 0; d < 3; d++) {
            optimizer_case c = {.args = ADAMW, .master = true, .m = true, .steps = 4};

            c.args.elements = sizes[s];
            c.args.value_dtype = machine_floats[d];
            c.args.grad_scale = &scale;
            check_optimizer(&all, c);
            c.args = SGD;
            c.args.elements = sizes[s];
            c.args.value_dtype = machine_floats[d];
            c.args.grad_scale = &scale;
            check_optimizer(&all, c);
            c.m = false;
            c.args.momentum = 0;
            check_optimizer(&all, c);
        }
    }
    machines_close(&all);
}

Test(optimizer, an_f32_value_is_its_own_master)
{
    machines all = machines_open();
    optimizer_case c = {.args = ADAMW, .m = true, .steps = 3};

    c.args.elements = 100;
    c.args.value_dtype = TP_DTYPE_F32;
    check_optimizer(&all, c);
    machines_close(&all);
}

/* Constant gradient, no decay, eps 0: n steps move exactly n lr. */
Test(optimizer, constant_gradient_moves_n_times_lr)
{
    machines all = machines_open();
    float grad[33], *got;
    optimizer_case c = {.args = {.kind = TPI_OPTIMIZER_ADAMW,
                                 .elements = 33,
                                 .value_dtype = TP_DTYPE_F32,
                                 .grad = grad,
                                 .lr = 1e-3f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f},
                        .m = true,
                        .steps = 5};
    void *zero = tpt_allocate(state_bytes(&c));

    for (int i = 0; i < 33; i++)
        grad[i] = 1;
    for (c.steps = 1; c.steps <= 100; c.steps += 33) {
        got = machines_run(&all, run_optimizer, &c, zero, state_bytes(&c));
        for (int i = 0; i < 33; i++)
            cr_assert_float_eq(got[i], -1e-3 * c.steps, tpt_tolerance(TP_DTYPE_F32, 8, 1e-3 * c.steps),
                               "after %d steps: %g", c.steps, (double)got[i]);
        free(got);
    }
    c.steps = 5;
    got = machines_run(&all, run_optimizer, &c, zero, state_bytes(&c));
    cr_assert_float_eq(got[0], -0.005, 1e-8);
    free(got);
    free(zero);
    machines_close(&all);
}

Test(optimizer, a_bad_scale_changes_nothing)
{
    static const float scales[] = {0, INFINITY, -INFINITY, NAN};
    machines all = machines_open();

    for (int s = 0; s < 4; s++) {
        for (int kind = 0; kind < 2; kind++) {
            optimizer_case c = {.args = kind ? ADAMW : SGD, .master = true, .m = true, .steps = 1};
            float grad[20];
            void *before, *got;

            for (int i = 0; i < 20; i++)
                grad[i] = 3;
            c.args.elements = 20;
            c.args.value_dtype = TP_DTYPE_BF16;
            c.args.grad = grad;
            c.args.grad_scale = &scales[s];
            before = state_new(&c);
            got = machines_run(&all, run_optimizer, &c, before, state_bytes(&c));
            cr_assert(memcmp(before, got, state_bytes(&c)) == 0);
            free(before);
            free(got);
        }
    }
    machines_close(&all);
}

Test(optimizer, zero_gradient_and_zero_epsilon_stay_put)
{
    machines all = machines_open();
    float grad[16] = {0}, *got;
    optimizer_case c = {.args = {.kind = TPI_OPTIMIZER_ADAMW,
                                 .elements = 16,
                                 .value_dtype = TP_DTYPE_F32,
                                 .grad = grad,
                                 .lr = 1,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f},
                        .m = true,
                        .steps = 2};
    float *before = state_new(&c);

    got = machines_run(&all, run_optimizer, &c, before, state_bytes(&c));
    cr_assert(tpt_same_bits("value", got, before, TP_DTYPE_F32, 16));
    free(before);
    free(got);
    machines_close(&all);
}
