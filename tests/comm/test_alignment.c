/* Tensors whose memory is not aligned to their dtype: every collective refuses them, on all ranks, and nothing
 * breaks. */
#include "ranks.h"

#include <stdio.h>

enum { ROWS = 4, COLS = 2 };

static tp_status expect_refused(tp_ctx *ctx, tp_status status, const char *words)
{
    CHECK(status == TP_ERR_ARGUMENT);
    if (!strstr(tp_last_message(), words) || !strstr(tp_last_message(), "is not aligned to the 4 bytes of f32"))
        return tpi_message(TP_ERR_INTERNAL, "%s: %s", words, tp_last_message());
    CHECK(tp_ctx_failure(ctx) == TP_OK);
    return TP_OK;
}

static tp_status call_all(tp_ctx *ctx, void *arg)
{
    size_t off = *(const size_t *)arg;
    tp_comm *world = tp_ctx_world(ctx);
    int size = tp_comm_size(world);
    int64_t each[8];
    void *memory;
    size_t bytes = sizeof(float) * 8 * ROWS * COLS + 64;
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 4 * bytes, &memory));
    char *at = memory;
    tp_tensor good = tp_tensor_2d(at, TP_DTYPE_F32, ROWS, COLS),
              bad = tp_tensor_2d(at + bytes + off, TP_DTYPE_F32, ROWS, COLS);
    tp_tensor all = tp_tensor_2d(at + 2 * bytes, TP_DTYPE_F32, ROWS * size, COLS),
              all_bad = tp_tensor_2d(at + 3 * bytes + off, TP_DTYPE_F32, ROWS * size, COLS);
    tp_reduce_desc residual = {.residual = bad}, bias = {.bias = tp_tensor_1d(at + bytes + off, TP_DTYPE_F32, COLS)};
    for (int i = 0; i < size; i++)
        each[i] = ROWS;
    TPI_TRY(expect_refused(ctx, tp_all_reduce(ctx, world, bad, good, NULL), "all_reduce: in.data"));
    TPI_TRY(expect_refused(ctx, tp_all_reduce(ctx, world, good, bad, NULL), "all_reduce: out.data"));
    TPI_TRY(expect_refused(ctx, tp_all_reduce(ctx, world, good, good, &residual), "all_reduce: residual.data"));
    TPI_TRY(expect_refused(ctx, tp_all_reduce(ctx, world, good, good, &bias), "all_reduce: bias.data"));
    TPI_TRY(expect_refused(ctx, tp_reduce_scatter(ctx, world, all_bad, good, NULL, NULL), "reduce_scatter: in.data"));
    TPI_TRY(expect_refused(ctx, tp_reduce_scatter(ctx, world, all, bad, NULL, NULL), "reduce_scatter: out.data"));
    TPI_TRY(expect_refused(ctx, tp_all_gather(ctx, world, bad, all, NULL), "all_gather: in.data"));
    TPI_TRY(expect_refused(ctx, tp_all_gather(ctx, world, good, all_bad, NULL), "all_gather: out.data"));
    TPI_TRY(expect_refused(ctx, tp_broadcast(ctx, world, bad, 0), "broadcast: tensor.data"));
    TPI_TRY(expect_refused(ctx, tp_all_to_all(ctx, world, all_bad, each, all, each), "all_to_all: in.data"));
    TPI_TRY(expect_refused(ctx, tp_all_to_all(ctx, world, all, each, all_bad, each), "all_to_all: out.data"));
    tp_p2p own[2] = {{.send = true, .peer = tp_comm_rank(world), .tensor = bad},
                     {.peer = tp_comm_rank(world), .tensor = good}};
    TPI_TRY(expect_refused(ctx, tp_p2p_batch(ctx, world, own, 2), "p2p_batch: tensor.data"));
    memset(at, 0, bytes); /* the context is well */
    TPI_TRY(tp_all_reduce(ctx, world, good, good, NULL));
    TPI_TRY(tp_ctx_synchronize(ctx));
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, 4 * bytes);
    return TP_OK;
}

Test(alignment, what_is_not_aligned_is_refused)
{
    for (int ranks = 1; ranks <= 2; ranks++)
        for (size_t off = 1; off <= 3; off++)
            tpt_run_with((tp_run_options){.ranks = ranks}, call_all, &off);
}
