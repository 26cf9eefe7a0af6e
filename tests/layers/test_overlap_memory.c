/* Overlapped layers ask the system for nothing after their first calls, however token counts change from call to
 * call. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "support/asked.h"
#include "support/data.h"

enum { HIDDEN = 32, MOST = 64 };

typedef struct setup {
    tp_overlap overlap;
    bool sequence_parallel;
    long long before, after;
    size_t bytes_before, bytes_after;
} setup;

typedef struct tensors {
    float *x, *y, *dy, *dx;
    void *saved;
    size_t saved_bytes;
} tensors;

static size_t context_bytes(const tp_ctx *ctx)
{
    size_t bytes = 0;
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        bytes += tp_ctx_memory(ctx, (tp_memory_kind)kind).bytes;
    return bytes;
}

static tp_status one_pass(tp_ctx *ctx, const tp_block *block, const tensors *t, int64_t tokens, bool sequence_parallel)
{
    const tp_pass pass = {.tokens = tokens, .step = 1};
    tp_range range = tp_pass_rows(ctx, &pass, sequence_parallel);
    int64_t rows = range.end - range.begin;
    tp_block_saved saved = {.memory = t->saved, .bytes = t->saved_bytes};
    const tp_io forward = {.in = tp_tensor_2d(t->x, TP_DTYPE_F32, rows, HIDDEN),
                           .out = tp_tensor_2d(t->y, TP_DTYPE_F32, rows, HIDDEN)};
    const tp_io backward = {.in = tp_tensor_2d(t->dy, TP_DTYPE_F32, rows, HIDDEN),
                            .out = tp_tensor_2d(t->dx, TP_DTYPE_F32, rows, HIDDEN)};
    tp_status status = tp_block_forward(ctx, block, &pass, &forward, &saved);
    if (status == TP_OK)
        status = tp_block_backward(ctx, block, &pass, &backward, &saved);
    return status == TP_OK ? tp_ctx_synchronize(ctx) : status;
}

static tp_status passes(tp_ctx *ctx, const tp_block *block, const tensors *t, setup *s)
{
    static const int64_t warm_up[] = {MOST, MOST, MOST - 1}, counts[] = {MOST, 37, 5, 1, 0, 61, 2, MOST};
    tp_status status = TP_OK;
    for (size_t i = 0; i < sizeof warm_up / sizeof warm_up[0] && status == TP_OK; i++)
        status = one_pass(ctx, block, t, warm_up[i], s->sequence_parallel);
    if (status == TP_OK)
        status = tp_barrier(ctx, tp_ctx_world(ctx));
    bool counts_here = tp_ctx_rank(ctx) == 0;
    if (counts_here) {
        s->before = atomic_load(&tpt_asked);
        s->bytes_before = context_bytes(ctx);
    }
    if (status == TP_OK)
        status = tp_barrier(ctx, tp_ctx_world(ctx));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0] && status == TP_OK; i++)
        status = one_pass(ctx, block, t, counts[i], s->sequence_parallel);
    if (status == TP_OK)
        status = tp_barrier(ctx, tp_ctx_world(ctx));
    if (counts_here) {
        s->after = atomic_load(&tpt_asked);
        s->bytes_after = context_bytes(ctx);
    }
    return status == TP_OK ? tp_barrier(ctx, tp_ctx_world(ctx)) : status;
}

static tp_status run_rank(tp_ctx *ctx, void *arg)
{
    setup *s = arg;
    const tp_block_desc desc = {.name = "block",
                                .hidden = HIDDEN,
                                .dtype = TP_DTYPE_F32,
                                .sequence_parallel = s->sequence_parallel,
                                .overlap = s->overlap,
                                .chunks = 3,
                                .attention = {.heads = 4},
                                .mlp = {.ffn = 48}};
    tp_block *block;
    tp_status status = tp_block_create(ctx, &desc, &block);
    if (status != TP_OK)
        return status;
    tensors t = {.x = tpt_new_normal(TP_DTYPE_F32, MOST * HIDDEN, 1, 1.0),
                 .y = tpt_new_normal(TP_DTYPE_F32, MOST * HIDDEN, 2, 1.0),
                 .dy = tpt_new_normal(TP_DTYPE_F32, MOST * HIDDEN, 3, 1.0),
                 .dx = tpt_new_normal(TP_DTYPE_F32, MOST * HIDDEN, 4, 1.0)};
    t.saved_bytes = tp_block_saved_bytes(block, &(tp_pass){.tokens = MOST});
    t.saved = tpt_allocate(t.saved_bytes);
    status = passes(ctx, block, &t, s);
    tp_block_destroy(block);
    free(t.x), free(t.y), free(t.dy), free(t.dx), free(t.saved);
    return status;
}

Test(overlap_memory, nothing_is_allocated_when_token_counts_change, .timeout = 120)
{
    for (int overlap = 0; overlap <= TP_OVERLAP_AUTO; overlap++)
        for (int i = 0; i < 4; i++) {
            setup s = {.overlap = (tp_overlap)overlap, .sequence_parallel = i % 2};
            const tp_run_options options = {.ranks = i / 2 ? 3 : 2, .ctx = {.threads = 1, .timeout_ms = 60000}};
            cr_assert_eq(tp_run_ranks(&options, run_rank, &s), TP_OK, "%s: %s", tp_overlap_name(s.overlap),
                         tp_last_message());
            cr_assert_eq(s.after, s.before, "%s, sequence parallelism %d: %lld allocations", tp_overlap_name(s.overlap),
                         i % 2, s.after - s.before);
            cr_assert_eq(s.bytes_after, s.bytes_before, "%s", tp_overlap_name(s.overlap));
        }
}
