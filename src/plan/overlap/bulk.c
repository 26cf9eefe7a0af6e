/* bulk: in backward, the gather of the weight gradient's operand runs beside the input gradient's GEMM, and the
 * reduction of the input gradient beside the weight gradient's GEMM. Nothing is cut, no GEMM changes. Elsewhere there
 * is no independent GEMM: as `none`. */
#include "plan/overlap/algorithms.h"
#include "plan/overlap/stages.h"

/* Both gradients: a weight gradient alone has nothing beside it. */
static bool is_backward(tp_pattern pattern)
{
    return tpi_has_gradient(pattern) && pattern != TP_PATTERN_GATHER_WEIGHT;
}

void tpi_generate_bulk(tpi_builder *builder)
{
    static const tpi_algorithm bulk = TPI_WHOLE_ON(TP_LANE_COMM);
    if (is_backward(tpi_builder_desc(builder)->pattern))
        tpi_stages_run(builder, &bulk);
    else
        tpi_generate_none(builder);
}
