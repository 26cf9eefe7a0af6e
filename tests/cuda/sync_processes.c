/* Ranks that are processes, for mutants of waits. */
#include "cuda/nccl_processes.h"
#include "cuda/sync_work.h"

tp_status tpt_run_processes(int ranks, tp_status (*fn)(tp_ctx *ctx, void *arg), void *arg)
{
    process own[MAX_RANKS];
    run_processes(ranks, fn, arg, own);
    for (int rank = 0; rank < ranks; rank++)
        if (own[rank].status != TP_OK)
            return own[rank].status;
    return TP_OK;
}
