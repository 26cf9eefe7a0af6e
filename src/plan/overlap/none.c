/* No overlap: the collective and the GEMM one after the other, on the compute lane. */
#include "plan/generator.h"

void tpi_overlap_none(tp_pattern pattern, int pieces, tp_plan *plan)
{
    for (int piece = 0; piece < pieces; piece++) {
        if (pattern == TP_PATTERN_GATHER_GEMM)
            tpi_plan_add(plan, (tp_plan_op){.kind = TP_OP_COLLECTIVE, .piece = piece, .peer = -1});
        tpi_plan_add(plan, (tp_plan_op){.kind = TP_OP_GEMM, .piece = piece, .peer = -1});
        if (pattern == TP_PATTERN_GEMM_REDUCE)
            tpi_plan_add(plan, (tp_plan_op){.kind = TP_OP_COLLECTIVE, .piece = piece, .peer = -1});
    }
}
