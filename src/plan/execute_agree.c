/* In a checking world ranks compare what they run before anything moves: lanes wait for ops of one plan only, so ranks
 * in different plans would wait for each other to the end of their bound. */
#include <stdio.h>

#include "plan/auto.h"
#include "plan/execute_state.h"

/* What a rank says of its run. */
typedef struct statement {
    int rank; /* of the world */
    int algorithm, pattern, chunks;
    bool lanes; /* beside compute: on all ranks or on none, as they have the same cores */
    int64_t tokens;
    int64_t cols[TP_BUFFERS]; /* of what moves; else 0: a rank's own may differ from others' */
    tp_dtype dtype[TP_BUFFERS];
} statement;

static void see_regions(tpi_prepared *p, const tp_plan_op *op, int rank)
{
    bool all = op->kind == TP_OP_COLLECTIVE || op->kind == TP_OP_SEND || op->kind == TP_OP_RECV;
    for (int i = 0; i < op->reads + op->writes; i++) {
        const tp_region *region = i < op->reads ? &op->read[i] : &op->write[i - op->reads];
        p->moves[region->buffer] = p->moves[region->buffer] || all || region->rank != rank;
    }
}

void tpi_agree_prepare(tpi_prepared *p)
{
    const tp_world *world = p->ctx->desc.world;
    for (int rank = 0; rank < p->plan->ranks; rank++)
        for (int i = 0; i < p->plan->rank[rank].count; i++)
            see_regions(p, &p->plan->rank[rank].op[i], rank);
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        p->agrees = p->agrees || (p->moves[buffer] && p->plan->ranks > 1 && world != NULL && tpi_world_checks(world));
}

static statement state(const tpi_run *run)
{
    const tpi_prepared *p = run->prepared;
    statement mine = {.rank = tp_ctx_rank(p->ctx),
                      .algorithm = p->plan->algorithm,
                      .pattern = p->plan->pattern,
                      .chunks = p->plan->chunks,
                      .lanes = tpi_plan_uses_lanes(p->plan),
                      .tokens = run->job.tokens};
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++) {
        mine.cols[buffer] = p->moves[buffer] ? run->job.view[buffer].cols : 0;
        mine.dtype[buffer] = run->job.view[buffer].dtype;
    }
    return mine;
}

static void describe(const statement *one, char text[TPI_PLAN_TEXT])
{
    bool one_lane = one->algorithm == TP_OVERLAP_PULL && !one->lanes;
    snprintf(text, TPI_PLAN_TEXT, "plan %s %s in %d chunks%s for %lld tokens",
             tp_overlap_name((tp_overlap)one->algorithm), tp_pattern_name((tp_pattern)one->pattern), one->chunks,
             one_lane ? " and one lane" : "", (long long)one->tokens);
}

static bool same_plan(const statement *a, const statement *b)
{
    return a->algorithm == b->algorithm && a->pattern == b->pattern && a->chunks == b->chunks && a->lanes == b->lanes &&
           a->tokens == b->tokens;
}

/* Of a layer in bf16 here and in f32 there only the result tells, where sums in f32 are all that moves. */
static tp_status compare_buffer(tp_ctx *ctx, const statement *a, const statement *b, int buffer, const char *plan)
{
    const char *name = tp_buffer_name((tp_buffer)buffer);
    if (a->dtype[buffer] != b->dtype[buffer])
        return tpi_fail(ctx, TP_ERR_MISMATCH, "%s: %s of rank %d is %s, that of rank %d %s", plan, name, a->rank,
                        tp_dtype_name(a->dtype[buffer]), b->rank, tp_dtype_name(b->dtype[buffer]));
    if (a->cols[buffer] != b->cols[buffer])
        return tpi_fail(ctx, TP_ERR_MISMATCH, "%s: %s of rank %d has %lld columns, that of rank %d %lld", plan, name,
                        a->rank, (long long)a->cols[buffer], b->rank, (long long)b->cols[buffer]);
    return TP_OK;
}

static tp_status compare(tp_ctx *ctx, const statement *a, const statement *b)
{
    char first[TPI_PLAN_TEXT], second[TPI_PLAN_TEXT];
    describe(a, first);
    describe(b, second);
    if (!same_plan(a, b))
        return tpi_fail(ctx, TP_ERR_MISMATCH, "rank %d runs %s, rank %d runs %s", a->rank, first, b->rank, second);
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        TPI_TRY(compare_buffer(ctx, a, b, buffer, first));
    return TP_OK;
}

static tp_status agree(tp_ctx *ctx, const void *pointer)
{
    const tpi_run *run = *(tpi_run *const *)pointer;
    tpi_prepared *p = run->prepared;
    tp_comm *comm = p->comm;
    const statement mine = state(run);
    statement all[TP_PLAN_MAX_RANKS];
    describe(&mine, p->what);
    comm->what = p->what;
    tp_status status = comm->table->exchange(ctx, comm, &mine, all, sizeof mine);
    comm->what = NULL;
    TPI_TRY(status);
    for (int rank = 1; rank < comm->size; rank++)
        TPI_TRY(compare(ctx, &all[0], &all[rank]));
    return TP_OK;
}

tp_status tpi_agree(tpi_run *run)
{
    tp_ctx *ctx = run->prepared->ctx;
    if (ctx->behind) /* there ranks meet when they issue */
        return agree(ctx, &run);
    return ctx->backend->run(ctx->compute, agree, &run, sizeof run);
}
