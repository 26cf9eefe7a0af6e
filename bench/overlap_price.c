/* What the simulator says of a pass: of every plan that it ran, with the calibrated costs of the machine and GEMMs as
 * fast as they were measured alone. */
#include "overlap.h"

#include "core/context.h"

#include <math.h>

static bool is_weight(tp_pattern pattern)
{
    return pattern == TP_PATTERN_BACKWARD || pattern == TP_PATTERN_BACKWARD_REDUCE;
}

static bool has_compute(const tp_plan *plan)
{
    for (int i = 0; i < plan->rank[0].count; i++)
        if (plan->rank[0].op[i].kind == TP_OP_COMPUTE)
            return true;
    return false;
}

/* Operations of the attention core on one rank. Its gradient is five products of the same size, of which the forward
 * pass has two. */
static double core_flops(const bench_overlap_job *job)
{
    if (job->shape.command != BENCH_ATTENTION)
        return 0;
    bench_layer_shape longest = job->shape;
    longest.window = 1; /* leaves the projections and one key a query */
    double width = (double)(job->shape.heads * job->shape.head_dim),
           tokens = (double)(job->shape.batch * job->shape.sequence);
    double core = bench_layer_flops(&job->shape) - bench_layer_flops(&longest) + 4 * tokens * width;
    return core * (job->backward ? 2.5 : 1) / job->ranks;
}

/* The shape behind a run, from the columns of its views. */
static tp_overlap_shape shape_of(const bench_overlap_job *job, const tpi_run_note *note)
{
    tp_pattern pattern = (tp_pattern)note->plan->pattern;
    const int64_t *cols = note->cols;
    tp_overlap_shape shape = {.pattern = pattern,
                              .dtype = note->dtype,
                              .ranks = note->plan->ranks,
                              .rows = note->tokens,
                              .inner = {cols[TP_BUFFER_INPUT]},
                              .cols = {cols[TP_BUFFER_OUTPUT]}};
    if (pattern == TP_PATTERN_GATHER_WEIGHT || cols[TP_BUFFER_OUTPUT] == 0)
        shape.cols[0] = cols[TP_BUFFER_SECOND];
    if (is_weight(pattern)) {
        shape.cols[1] = cols[TP_BUFFER_SECOND];
        shape.inner[1] = cols[TP_BUFFER_INPUT];
    }
    if (pattern == TP_PATTERN_ROW_BACKWARD) {
        shape.cols[1] = cols[TP_BUFFER_OUTPUT];
        shape.inner[1] = cols[TP_BUFFER_INPUT];
    }
    if (pattern >= TP_PATTERN_CHAIN) {
        shape.cols[0] = cols[TP_BUFFER_MIDDLE];
        shape.inner[1] = cols[TP_BUFFER_CORE];
        shape.cols[1] = cols[TP_BUFFER_OUTPUT];
    }
    if (has_compute(note->plan)) {
        shape.compute_flops = core_flops(job);
        shape.compute_bytes = (double)note->tokens * (double)(cols[TP_BUFFER_MIDDLE] + cols[TP_BUFFER_CORE]) *
                              (double)tp_dtype_size(note->dtype);
    }
    return shape;
}

/* GEMMs `slower` times as slow as on the machine. */
static tp_machine scaled(const tp_machine *machine, double slower)
{
    tp_machine out = *machine;
    for (int dtype = 0; dtype < TP_DTYPE_COUNT; dtype++) {
        for (int i = 0; i < out.gemm[dtype].points; i++)
            out.gemm[dtype].flops[i] /= slower;
        for (int i = 0; i < out.weight[dtype].points; i++)
            out.weight[dtype].flops[i] /= slower;
    }
    return out;
}

/* Sums over all runs: predicted seconds, and those of their GEMMs uncut; *core: one of them has the attention core. */
static tp_status add_up(const bench_overlap_job *job, const tp_machine *machine, double *seconds, double *gemm,
                        bool *core)
{
    *seconds = *gemm = 0;
    *core = false;
    for (int i = 0; i < job->noted; i++) {
        tp_overlap_shape shape = shape_of(job, &job->notes[i]);
        tp_overlap_candidate predicted;
        TPI_TRY(tp_overlap_predict(machine, &shape, job->notes[i].plan, &predicted));
        *seconds += predicted.seconds;
        *gemm += predicted.gemm_seconds;
        *core = *core || shape.compute_flops > 0;
    }
    return TP_OK;
}

tp_status bench_overlap_simulate(const bench_overlap_job *job, double *seconds)
{
    double gemm, alone = job->figures->compute.figure.seconds;
    bool core;
    tp_machine machine = job->machine;
    machine.link = job->link;
    *seconds = NAN;
    TPI_TRY(add_up(job, &machine, seconds, &gemm, &core));
    const tp_dtype dtype = machine.gemm[job->shape.dtype].points > 0 ? job->shape.dtype : TP_DTYPE_F32;
    int points = machine.gemm[dtype].points;
    /* A core that no plan has runs at the same rate, between plans. */
    double outside = core || points == 0 ? 0 : core_flops(job) / machine.gemm[dtype].flops[points - 1];
    if (gemm <= 0)
        return TP_OK;
    double slower = alone / (gemm + outside);
    machine = scaled(&machine, slower);
    TPI_TRY(add_up(job, &machine, seconds, &gemm, &core));
    *seconds += outside * slower;
    return TP_OK;
}
