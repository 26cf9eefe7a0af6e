/* Packing B before the products that read it. */
#include "cpu/gemm.h"

size_t CPU(gemm_packed_bytes)(tp_dtype dtype, int64_t cols, int64_t inner, const tpi_inner *order)
{
    tpi_gemm_plan plan;
    CPU(gemm_plan_make)(&plan, dtype, inner, order);
    return (size_t)tpi_divide_up(cols, TPI_GEMM_COLS) * (size_t)plan.steps * TPI_GEMM_COLS * sizeof(float);
}

typedef struct pack_call {
    const tpi_cpu_gemm_pack_args *args;
    tpi_gemm_plan plan;
} pack_call;

/* Steps of one part where the source is contiguous along the columns: it is read row by row, into all panels. */
#define PACK_STEPS 64

static tpi_gemm_pack_job pack_job_of(const pack_call *call)
{
    return (tpi_gemm_pack_job){.plan = &call->plan,
                               .operand = &call->args->b,
                               .count = call->args->cols,
                               .width = TPI_GEMM_COLS,
                               .steps = call->plan.steps,
                               .out = call->args->out.data,
                               .panel_stride = call->plan.steps * TPI_GEMM_COLS,
                               .streaming = true};
}

static void pack_panel_part(void *arg, int64_t part, int worker)
{
    tpi_gemm_pack_job pack = pack_job_of(arg);
    (void)worker;
    pack.first = part * TPI_GEMM_COLS;
    pack.count = tpi_least(pack.count - pack.first, TPI_GEMM_COLS);
    pack.out += part * pack.panel_stride;
    CPU(gemm_pack_panels)(&pack);
}

static void pack_steps_part(void *arg, int64_t part, int worker)
{
    tpi_gemm_pack_job pack = pack_job_of(arg);
    (void)worker;
    pack.first_step = part * PACK_STEPS;
    pack.steps = tpi_least(pack.steps - pack.first_step, PACK_STEPS);
    pack.out += pack.first_step * TPI_GEMM_COLS;
    CPU(gemm_pack_panels)(&pack);
}

tp_status CPU(gemm_pack)(tp_ctx *ctx, const void *task)
{
    pack_call call = {.args = task};
    CPU(gemm_plan_make)(&call.plan, call.args->b.dtype, call.args->inner, call.args->order);
    if (call.args->b.inner_stride == 1)
        tpi_cpu_parallel(ctx, tpi_divide_up(call.args->cols, TPI_GEMM_COLS), pack_panel_part, &call);
    else
        tpi_cpu_parallel(ctx, tpi_divide_up(call.plan.steps, PACK_STEPS), pack_steps_part, &call);
    return TP_OK;
}
