/* AdamW and SGD on one parameter. The packed copies of a weight are made from its new rows: one from registers, if
 * whole vectors of rows are whole lines of it, the other while they are in the cache. */
#include "cpu/cpu.h"
#include "cpu/gemm.h"
#include "cpu/simd.h"

#define PART_ELEMENTS 16384
/* Rows of a weight that are updated and packed together: whole panels of the forward copy. */
#define PART_ROWS 64
_Static_assert(PART_ROWS % TPI_GEMM_COLS == 0, "a part has whole panels");

typedef struct optimizer_work {
    const tpi_optimizer_args *args;
    float *master;
    float scale;
    float first_correction, second_correction; /* 1 / (1 - beta^step) */
    tpi_gemm_plan forward, backward;           /* of the copies */
    bool in_steps; /* a row, or two, are a step of the backward copy */
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

/* One vector of the parameter. The new value, before it is rounded. */
static inline vf update_vector(const optimizer_work *work, const tpi_optimizer_args *args, int64_t at, int n)
{
    const bool adamw = args->kind == TPI_OPTIMIZER_ADAMW, moment = adamw || args->m;
    optimizer_lanes x;
    vf direction;

    /* All loads come before the stores: the arrays often lie at equal page offsets. */
    x.w = load(work->master + at, n);
    x.grad = vf_mul(load(args->grad + at, n), vf_set1(work->scale));
    x.m = moment ? load(args->m + at, n) : vf_zero();
    x.v = adamw ? load(args->v + at, n) : vf_zero();
    if (adamw)
        direction = adamw_direction(work, args, &x);
    else
        direction = x.m = vf_fma(x.m, vf_set1(args->momentum), x.grad);
    x.w = vf_fnma(vf_fma(x.w, vf_set1(args->decay), direction), vf_set1(args->lr), x.w);
    if (moment)
        store(args->m + at, x.m, n);
    if (adamw)
        store(args->v + at, x.v, n);
    store(work->master + at, x.w, n);
    if (args->value != work->master)
        vf_store_any(tpi_element_of(args->value, args->value_dtype, at), args->value_dtype, x.w, n);
    return x.w;
}

/* What update_vector reads, as a copy that its stores can't change: the compiler keeps it in registers. */
static inline optimizer_work update_work(const optimizer_work *given)
{
    return (optimizer_work){.master = given->master,
                            .scale = given->scale,
                            .first_correction = given->first_correction,
                            .second_correction = given->second_correction};
}

static void update(const optimizer_work *given, int64_t at, int64_t end)
{
    const tpi_optimizer_args args = *given->args;
    const optimizer_work work = update_work(given);

    for (int n; at < end; at += n) {
        n = tpi_lanes_of(end - at);
        update_vector(&work, &args, at, n);
    }
}

static void optimizer_part(void *arg, int64_t part, int worker)
{
    const optimizer_work *work = arg;
    int64_t at = part * PART_ELEMENTS, elements = work->args->elements;

    (void)worker;
    update(work, at, at + PART_ELEMENTS < elements ? at + PART_ELEMENTS : elements);
}

/* ---- packed copies ---- */

/* Panels of the forward copy of rows [row, end). */
static void pack_forward(const optimizer_work *work, int64_t row, int64_t end)
{
    const tpi_optimizer_args *args = work->args;
    const tpi_operand operand = {args->value, args->value_dtype, args->copies->cols, 1};
    const tpi_gemm_pack_job job = {.plan = &work->forward,
                                   .operand = &operand,
                                   .first = row,
                                   .count = end - row,
                                   .width = TPI_GEMM_COLS,
                                   .steps = work->forward.steps,
                                   .out = (float *)args->copies->forward.data + row * work->forward.steps,
                                   .panel_stride = work->forward.steps * TPI_GEMM_COLS,
                                   .streaming = true};

    CPU(gemm_pack_panels)(&job);
}

/* Steps of the backward copy, in all panels. */
static void pack_steps(const optimizer_work *work, int64_t step, int64_t end)
{
    const tpi_optimizer_args *args = work->args;
    const tpi_operand operand = {args->value, args->value_dtype, 1, args->copies->cols};
    const tpi_gemm_pack_job job = {.plan = &work->backward,
                                   .operand = &operand,
                                   .count = args->copies->cols,
                                   .width = TPI_GEMM_COLS,
                                   .first_step = step,
                                   .steps = end - step,
                                   .out = (float *)args->copies->backward.data + step * TPI_GEMM_COLS,
                                   .panel_stride = work->backward.steps * TPI_GEMM_COLS,
                                   .streaming = true};

    if (end > step)
        CPU(gemm_pack_panels)(&job);
}

#if TPI_ISA_LEVEL >= 2
/* A vector of a step of the backward copy, past the caches: an f32, or a pair of bf16, the earlier one of which is
 * rounded already and in the cache. */
static inline void copy_vector(float *step, vf value, const void *earlier)
{
    vi bits = vf_bits(value);

    if (earlier != NULL)
        bits = vi_or(vf_bits(vf_load_bf16(earlier)),
                     vi_shift_right(vf_bits(tpi_widen_bf16(tpi_narrow_bf16(value))), 16));
    _mm512_stream_si512((__m512i *)step, bits);
}

/* Rows [row, end) of one run, each (each two) of which is a step of the backward copy: that is written from registers,
 * while what follows is read from memory. */
static inline __attribute__((always_inline)) void update_steps(const optimizer_work *given, int64_t row, int64_t end,
                                                              int64_t step, const bool pairs)
{
    const tpi_optimizer_args args = *given->args;
    const optimizer_work work = update_work(given);
    const int64_t cols = args.copies->cols, panel = given->backward.steps * TPI_GEMM_COLS;

    for (; row < end; row++, step++) {
        float *out = (float *)args.copies->backward.data + step * TPI_GEMM_COLS;
        if (pairs) {
            update(given, row * cols, (row + 1) * cols);
            row++;
        }
        for (int64_t col = 0; col < cols; col += TPI_GEMM_COLS, out += panel)
            for (int i = 0; i < TPI_GEMM_COLS; i += TPI_LANES) {
                const int64_t at = row * cols + col + i;
                vf value = update_vector(&work, &args, at, TPI_LANES);
                copy_vector(out + i, value, pairs ? tpi_element_of(args.value, TP_DTYPE_BF16, at - cols) : NULL);
            }
    }
    _mm_sfence();
}

/* Whether two runs have rows in common. */
static bool runs_overlap(const tpi_gemm_plan *plan)
{
    for (int i = 0; i < plan->runs; i++)
        for (int j = 0; j < i; j++) {
            const tpi_gemm_run *a = &plan->run[i], *b = &plan->run[j];
            if (a->begin >= 0 && b->begin >= 0 && a->begin < b->begin + b->length && b->begin < a->begin + a->length)
                return true;
        }
    return false;
}

/* Whole vectors, whole panels, no step with half a pair, and every row is in the order once. */
static bool updates_in_steps(const optimizer_work *work)
{
    const tpi_gemm_plan *plan = &work->backward;
    const tpi_weight_copies *copies = work->args->copies;
    bool even = plan->format == TPI_GEMM_F32 || plan->format == TPI_GEMM_BF16_PAIRS;
    int64_t rows = 0;

    for (int i = 0; i < plan->runs; i++) {
        int64_t length = plan->run[i].begin < 0 ? 0 : plan->run[i].length;
        even = even && length % plan->per_step == 0;
        rows += length;
    }
    return even && rows == copies->rows && !runs_overlap(plan) && copies->cols % TPI_GEMM_COLS == 0 &&
           (uintptr_t)copies->backward.data % 64 == 0;
}
#endif

/* The backward copy of rows [row, end), wherever the order has them; in steps, the rows are updated with it. */
static void pack_backward(const optimizer_work *work, int64_t row, int64_t end)
{
    const int per_step = work->backward.per_step;

    for (int i = 0; i < work->backward.runs; i++) {
        const tpi_gemm_run *run = &work->backward.run[i];
        int64_t from = row > run->begin ? row : run->begin;
        int64_t to = end < run->begin + run->length ? end : run->begin + run->length;
        int64_t step = (from - run->begin + run->position) / per_step;

        if (run->begin < 0 || from >= to)
            continue;
        if (!work->in_steps)
            pack_steps(work, step, (to - run->begin + run->position + per_step - 1) / per_step);
#if TPI_ISA_LEVEL >= 2
        else if (per_step == 2)
            update_steps(work, from, to, step, true);
        else
            update_steps(work, from, to, step, false);
#endif
    }
}

static void weight_part(void *arg, int64_t part, int worker)
{
    const optimizer_work *work = arg;
    const int64_t rows = work->args->copies->rows, cols = work->args->copies->cols;
    int64_t row = part * PART_ROWS, end = row + PART_ROWS < rows ? row + PART_ROWS : rows;

    (void)worker;
    if (!work->in_steps)
        update(work, row * cols, end * cols);
    pack_backward(work, row, end);
    pack_forward(work, row, end);
}

/* Whether no step of the backward copy has rows of two parts: pairs begin at even rows. */
static bool parts_are_apart(const tpi_gemm_plan *plan)
{
    for (int i = 0; i < plan->runs; i++)
        if (plan->run[i].begin >= 0 &&
            (plan->run[i].begin % plan->per_step != 0 || plan->run[i].position % plan->per_step != 0))
            return false;
    return true;
}

static void update_weight(tp_ctx *ctx, optimizer_work *work)
{
    const tpi_weight_copies *copies = work->args->copies;
    const tp_dtype dtype = work->args->value_dtype;
    const void *value = work->args->value;

    CPU(gemm_plan_make)(&work->forward, dtype, copies->cols, copies->forward_order);
    CPU(gemm_plan_make)(&work->backward, dtype, copies->rows, copies->backward_order);
    if (parts_are_apart(&work->backward)) {
#if TPI_ISA_LEVEL >= 2
        work->in_steps = updates_in_steps(work);
#endif
        tpi_cpu_parallel(ctx, (copies->rows + PART_ROWS - 1) / PART_ROWS, weight_part, work);
        return;
    }
    tpi_cpu_parallel(ctx, (work->args->elements + PART_ELEMENTS - 1) / PART_ELEMENTS, optimizer_part, work);
    CPU(gemm_pack)
    (ctx, &(tpi_cpu_gemm_pack_args){
              {value, dtype, copies->cols, 1}, copies->rows, copies->cols, copies->forward_order, copies->forward});
    CPU(gemm_pack)
    (ctx, &(tpi_cpu_gemm_pack_args){
              {value, dtype, 1, copies->cols}, copies->cols, copies->rows, copies->backward_order, copies->backward});
}

/* ---- the op ---- */

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
    if (optimizer->copies)
        update_weight(ctx, &work);
    else
        tpi_cpu_parallel(ctx, (optimizer->elements + PART_ELEMENTS - 1) / PART_ELEMENTS, optimizer_part, &work);
    return TP_OK;
}
