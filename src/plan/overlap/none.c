/* none: the collective and the GEMM one after the other, on the compute lane. A reduction follows its GEMM at once,
 * before an independent weight gradient. */
#include "plan/overlap/algorithms.h"
#include "plan/overlap/stages.h"

void tpi_generate_none(tpi_builder *builder)
{
    static const tpi_algorithm none = TPI_WHOLE_ON(TP_LANE_COMPUTE);
    tpi_stages_run(builder, &none);
}
