/* pipeline: collectives stay collectives, but on chunks: the collective of chunk i runs under the GEMM of chunk i + 1
 * (gathers: i - 1). A chunk of a gather or scatter is one piece of every owner; where the result goes to all ranks, and
 * in weight gradients, it is a run of consecutive rows. */
#include "plan/overlap/algorithms.h"
#include "plan/overlap/stages.h"

static tp_region run_of(const tpi_stages *s, int chunk)
{
    return (tp_region){.piece = chunk * s->ranks, .pieces = s->ranks, .step = 1};
}

static tp_region stripe_of(const tpi_stages *s, int chunk)
{
    return (tp_region){.piece = chunk, .pieces = s->ranks, .step = s->chunks};
}

static int units(const tpi_stages *s)
{
    return s->chunks;
}

static tp_region unit(const tpi_stages *s, int rank, int k)
{
    (void)rank;
    return s->reduces ? run_of(s, k) : stripe_of(s, k);
}

/* Beside an input gradient its operand has long been there. */
static bool weight_is_whole(const tpi_stages *s)
{
    return s->pattern != TP_PATTERN_GATHER_WEIGHT;
}

static int weight_units(const tpi_stages *s)
{
    return weight_is_whole(s) ? 1 : s->chunks;
}

static tp_region weight_unit(const tpi_stages *s, int rank, int k)
{
    (void)rank;
    return weight_is_whole(s) ? tpi_all(s) : run_of(s, k);
}

static void gather(const tpi_stages *s, tp_buffer buffer)
{
    bool second = buffer == TP_BUFFER_SECOND;
    if (s->sliced || (second && weight_is_whole(s))) { /* a slice of columns is no dense chunk */
        tpi_whole_gather(s, buffer);
        return;
    }
    for (int chunk = 0; chunk < s->chunks; chunk++)
        tpi_emit_gather(s, TP_LANE_COMM, buffer, second ? run_of(s, chunk) : stripe_of(s, chunk), 0);
}

static void scatter(const tpi_stages *s, int k)
{
    tpi_emit_reduction(s, TP_LANE_COMM, unit(s, 0, k));
}

void tpi_generate_pipeline(tpi_builder *builder)
{
    static const tpi_algorithm pipeline = {.units = units,
                                           .unit = unit,
                                           .gather = gather,
                                           .source = tpi_gathered_source,
                                           .weight_units = weight_units,
                                           .weight_unit = weight_unit,
                                           .scatter = scatter,
                                           .finish = tpi_no_finish,
                                           .slices = tpi_slices_at_once,
                                           .lane = TP_LANE_COMM};
    tpi_stages_run(builder, &pipeline);
}
