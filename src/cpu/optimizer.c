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

/* mhat / (sqrt(vhat) + eps) */
static inline vf adamw_direction(const optimizer_work *work, vf grad, int64_t at, int n)
{
    const tpi_optimizer_args *args = work->args;
    vf m = vf_fma(vf_load_n(args->m + at, n), vf_set1(args->beta1), vf_mul(grad, vf_set1(1.0f - args->beta1)));
    vf v = vf_fma(vf_load_n(args->v + at, n), vf_set1(args->beta2),
                  vf_mul(vf_mul(grad, grad), vf_set1(1.0f - args->beta2)));
    vf root = vf_sqrt(vf_mul(v, vf_set1(work->second_correction))), direction;

    vf_store_n(args->m + at, m, n);
    vf_store_n(args->v + at, v, n);
    direction = vf_div(vf_mul(m, vf_set1(work->first_correction)), vf_add(root, vf_set1(args->epsilon)));
    /* An element that never had a gradient stays, also with eps 0. */
    return vf_select(vf_eq(m, vf_zero()), vf_zero(), direction);
}

static inline vf sgd_direction(const optimizer_work *work, vf grad, int64_t at, int n)
{
    const tpi_optimizer_args *args = work->args;

    if (!args->m)
        return grad;
    grad = vf_fma(vf_load_n(args->m + at, n), vf_set1(args->momentum), grad);
    vf_store_n(args->m + at, grad, n);
    return grad;
}

static void optimizer_part(void *arg, int64_t part, int worker)
{
    const optimizer_work *work = arg;
    const tpi_optimizer_args *args = work->args;
    int64_t at = part * PART_ELEMENTS, end = at + PART_ELEMENTS < args->elements ? at + PART_ELEMENTS : args->elements;

    (void)worker;
    for (int n; at < end; at += n) {
        vf grad, w, direction;

        n = tpi_lanes_of(end - at);
        grad = vf_mul(vf_load_n(args->grad + at, n), vf_set1(work->scale));
        direction =
            args->kind == TPI_OPTIMIZER_ADAMW ? adamw_direction(work, grad, at, n) : sgd_direction(work, grad, at, n);
        w = vf_load_n(work->master + at, n);
        w = vf_fnma(vf_fma(w, vf_set1(args->decay), direction), vf_set1(args->lr), w);
        vf_store_n(work->master + at, w, n);
        if (args->value != work->master)
            vf_store_any(tpi_element_of(args->value, args->value_dtype, at), args->value_dtype, w, n);
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
