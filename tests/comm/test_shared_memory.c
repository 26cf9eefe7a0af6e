/* Memory that ranks share: each allocation of it may fail, on whichever rank, and all ranks get a status. */
#include <malloc.h>
#include <stdatomic.h>

#include "ranks.h"

/* Takes the place of the C library's. 0: none fails; otherwise the n-th from now. */
static atomic_long fail_at;
static atomic_long made;

void *aligned_alloc(size_t alignment, size_t bytes)
{
    atomic_fetch_add(&made, 1);
    if (atomic_load(&fail_at) > 0 && atomic_fetch_sub(&fail_at, 1) == 1)
        return NULL;
    return memalign(alignment, bytes);
}

static tp_status split_twice(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *world = tp_ctx_world(ctx), *odd = NULL, *all = NULL;
    tp_status status = tp_comm_split(ctx, world, tp_ctx_rank(ctx) % 2, 0, &odd);
    if (status == TP_OK)
        status = tp_comm_split(ctx, world, 0, 0, &all);
    /* A refused split left the world as it was. */
    if ((status == TP_ERR_MEMORY || status == TP_ERR_PEER) && tp_ctx_failure(ctx) == TP_OK &&
        tp_barrier(ctx, world) != TP_OK)
        status = TP_ERR_INTERNAL;
    tp_comm_destroy(ctx, all);
    tp_comm_destroy(ctx, odd);
    return status;
}

Test(shared_memory, every_allocation_may_fail)
{
    const tp_run_options options = {.ranks = 5, .ctx = {.threads = 1, .timeout_ms = 60000}};
    atomic_store(&fail_at, 0);
    atomic_store(&made, 0);
    tp_status status = tp_run_ranks(&options, split_twice, NULL);
    cr_assert_eq(status, TP_OK, "%s", tp_last_message());
    long total = atomic_load(&made);
    cr_assert_gt(total, 8, "the library's allocations are not seen");
    for (long n = 1; n <= total; n++) {
        atomic_store(&fail_at, n);
        status = tp_run_ranks(&options, split_twice, NULL);
        cr_assert_eq(status, TP_ERR_MEMORY, "allocation %ld of %ld: %s: %s", n, total, tp_status_name(status),
                     tp_last_message());
    }
}
