/* Ranks that are processes, for mutants of waits. */
#include "cuda/nccl_processes.h"
#include "cuda/sync_work.h"

tp_status tpt_run_processes(int ranks, tp_status (*fn)(tp_ctx *ctx, void *arg), void *arg)
{
    outcome ends;
    run_processes(ranks, fn, arg, &ends);
    for (int rank = 0; rank < ranks; rank++)
        if (ends.status[rank] != TP_OK)
            return ends.status[rank];
    return TP_OK;
}
