/* AdamW and SGD on one parameter. */
#include "cpu/cpu.h"
#include "cpu/simd.h"

#define PART_ELEMENTS 16384

typedef struct optimizer_work {
    const tpi_optimizer_args *args;
    float *master;
    float scale;
    float first_correction, second_correction; /* 1 / (1 - beta^step) */
} optimizer_work;

/* Whole vectors without a mask, which is what the loop's body almost always has. */
static inline vf load(const float *x, int n)
{
    return vf_load_any(x, TP_DTYPE_F32, n);
}

static inline void store(float *x, vf value, int n)
{
    vf_store_any(x, TP_DTYPE_F32, value, n);
}

/* One vector's state. */
typedef struct optimizer_lanes {
    vf w, m, v, grad;
} optimizer_lanes;

/* m, v and their direction mhat / (sqrt(vhat) + eps). */
static inline vf adamw_direction(const optimizer_work *work, const tpi_optimizer_args *args, optimizer_lanes *x)
{
    vf root, direction;

    x->m = vf_fma(x->m, vf_set1(args->beta1), vf_mul(x->grad, vf_set1(1.0f - args->beta1)));
    x->v = vf_fma(x->v, vf_set1(args->beta2), vf_mul(vf_mul(x->grad, x->grad), vf_set1(1.0f - args->beta2)));
    root = vf_sqrt(vf_mul(x->v, vf_set1(work->second_correction)));
    direction = vf_div(vf_mul(x->m, vf_set1(work->first_correction)), vf_add(root, vf_set1(args->epsilon)));
    /* An element that never had a gradient stays, also with eps 0. */
    return vf_select(vf_eq(x->m, vf_zero()), vf_zero(), direction);
}

static void optimizer_part(void *arg, int64_t part, int worker)
{
    /* Copies, which the stores below can't change: the compiler keeps them in registers. */
    const optimizer_work work = *(const optimizer_work *)arg;
    const tpi_optimizer_args args = *work.args;
    int64_t at = part * PART_ELEMENTS, end = at + PART_ELEMENTS < args.elements ? at + PART_ELEMENTS : args.elements;
    bool adamw = args.kind == TPI_OPTIMIZER_ADAMW, moment = adamw || args.m;

    (void)worker;
    for (int n; at < end; at += n) {
        optimizer_lanes x;
        vf direction;

        /* All loads come before the stores: the arrays often lie at equal page offsets. */
        n = tpi_lanes_of(end - at);
        x.w = load(work.master + at, n);
        x.grad = vf_mul(load(args.grad + at, n), vf_set1(work.scale));
        x.m = moment ? load(args.m + at, n) : vf_zero();
        x.v = adamw ? load(args.v + at, n) : vf_zero();
        if (adamw)
            direction = adamw_direction(&work, &args, &x);
        else
            direction = x.m = vf_fma(x.m, vf_set1(args.momentum), x.grad);
        x.w = vf_fnma(vf_fma(x.w, vf_set1(args.decay), direction), vf_set1(args.lr), x.w);
        if (moment)
            store(args.m + at, x.m, n);
        if (adamw)
            store(args.v + at, x.v, n);
        store(work.master + at, x.w, n);
        if (args.value != work.master)
            vf_store_any(tpi_element_of(args.value, args.value_dtype, at), args.value_dtype, x.w, n);
    }
}

tp_status CPU(optimizer)(tp_ctx *ctx, const void *args)
{
    optimizer_work work = {.args = args};
    const tpi_optimizer_args *optimizer = args;

    if (!optimizer->master && optimizer->value_dtype != TP_DTYPE_F32)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "optimizer: a %s value needs an f32 master",
                          tp_dtype_name(optimizer->value_dtype));
    work.master = optimizer->master ? optimizer->master : optimizer->value;
    work.scale = optimizer->grad_scale ? *optimizer->grad_scale : 1.0f;
    if (work.scale == 0 || !isfinite(work.scale))
        return TP_OK;
    work.first_correction = (float)(1 / (1 - pow((double)optimizer->beta1, (double)optimizer->step)));
    work.second_correction = (float)(1 / (1 - pow((double)optimizer->beta2, (double)optimizer->step)));
    tpi_cpu_parallel(ctx, (optimizer->elements + PART_ELEMENTS - 1) / PART_ELEMENTS, optimizer_part, &work);
    return TP_OK;
}
