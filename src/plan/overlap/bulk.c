/* bulk: in backward, the gather of the weight gradient's operand runs beside the input gradient's GEMM, and the reduction of the input gradient beside
 * the weight gradient's GEMM. Nothing is cut, no GEMM changes. Elsewhere there is no independent GEMM: as `none`. */
#include "plan/overlap/algorithms.h"
#include "plan/overlap/stages.h"

static void gather(const tpi_stages *s, tp_buffer buffer)
{
    tpi_emit_gather(s, TP_LANE_COMM, buffer, tpi_all(s), 0);
}

static void scatter(const tpi_stages *s, int k)
{
    (void)k;
    tpi_emit_reduction(s, TP_LANE_COMM, tpi_all(s));
}

static void finish(const tpi_stages *s)
{
    (void)s;
}

void tpi_generate_bulk(tpi_builder *builder)
{
    static const tpi_algorithm bulk = {.units = tpi_one_unit,
                                       .unit = tpi_whole_unit,
                                       .gather = gather,
                                       .source = tpi_gathered_source,
                                       .weight_units = tpi_one_unit,
                                       .weight_unit = tpi_whole_unit,
                                       .scatter = scatter,
                                       .finish = finish};
    tp_pattern pattern = tpi_builder_desc(builder)->pattern;
    bool chain = pattern == TP_PATTERN_CHAIN_BACKWARD || pattern == TP_PATTERN_CHAIN_BACKWARD_REDUCE;
    if (chain || pattern == TP_PATTERN_BACKWARD || pattern == TP_PATTERN_BACKWARD_REDUCE)
        tpi_stages_run(builder, &bulk);
    else
        tpi_generate_none(builder);
}
