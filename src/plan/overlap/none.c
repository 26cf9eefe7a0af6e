/* none: the collective and the GEMM one after the other, on the compute lane. */
#include "plan/overlap/algorithms.h"
#include "plan/overlap/stages.h"

static void gather(const tpi_stages *s, tp_buffer buffer)
{
    tpi_emit_gather(s, TP_LANE_COMPUTE, buffer, tpi_all(s), 0);
}

/* The reduction follows its GEMM at once, before an independent weight gradient. */
static void scatter(const tpi_stages *s, int k)
{
    (void)k;
    tpi_emit_reduction(s, TP_LANE_COMPUTE, tpi_all(s));
}

static void finish(const tpi_stages *s)
{
    (void)s;
}

void tpi_generate_none(tpi_builder *builder)
{
    static const tpi_algorithm none = {.units = tpi_one_unit,
                                       .unit = tpi_whole_unit,
                                       .gather = gather,
                                       .source = tpi_gathered_source,
                                       .weight_units = tpi_one_unit,
                                       .weight_unit = tpi_whole_unit,
                                       .scatter = scatter,
                                       .finish = finish};
    tpi_stages_run(builder, &none);
}
