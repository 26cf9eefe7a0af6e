/* Plans that TP_OVERLAP_AUTO makes for a place in a layer: all ranks go by rank 0's table, made for the machine and the
 * link that it runs on; the number of tokens picks the entry. */
#include <criterion/criterion.h>
#include <string.h>
#include <tp/tp.h>

#include "plan/auto.h"
#include "plan/execute_state.h"
#include "plan/fold.h"

/* GEMMs of 1 GFLOP/s; a link, or memory that is shared. */
static tp_machine machine_with(double bytes_per_second)
{
    tp_machine machine = {.threads = 1, .link = {.bytes_per_second = bytes_per_second}};
    machine.gemm[TP_DTYPE_F32].points = 1;
    machine.gemm[TP_DTYPE_F32].rows[0] = 64;
    machine.gemm[TP_DTYPE_F32].flops[0] = 1e9;
    return machine;
}

static const tp_plan_desc gather = {.algorithm = TP_OVERLAP_AUTO, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2};
static const tp_overlap_shape layer = {.dtype = TP_DTYPE_F32, .cols = {20, 0}, .inner = {24, 0}};

/* What auto makes of the layer on a machine. */
static void fill(const tp_machine *machine, tp_overlap_table *out)
{
    tp_overlap_shape shape = layer;
    shape.pattern = TP_PATTERN_GATHER_GEMM;
    shape.ranks = 2;
    shape.rows = (int64_t)1 << 17;
    cr_assert_eq(tp_overlap_table_fill(machine, &shape, out), TP_OK, "%s", tp_last_message());
}

static bool same_table(const tp_overlap_table *a, const tp_overlap_table *b)
{
    bool same = a->classes == b->classes;
    for (int i = 0; same && i < a->classes; i++)
        same = a->entry[i].rows == b->entry[i].rows && a->entry[i].algorithm == b->entry[i].algorithm &&
               a->entry[i].chunks == b->entry[i].chunks;
    return same;
}

typedef struct scene {
    tp_machine machine[2]; /* of each rank */
    tp_overlap_table table[2];
} scene;

static tp_status choose(tp_ctx *ctx, void *arg)
{
    scene *s = arg;
    int rank = tp_ctx_rank(ctx);
    tpi_site site;
    ctx->desc.machine = &s->machine[rank];
    tp_status status = tpi_site_make(ctx, tp_ctx_world(ctx), &gather, &layer, &site);
    if (status == TP_OK)
        s->table[rank] = site.choice->table;
    return status;
}

static void check_choice(scene *s, tp_link link, const tp_machine *meant)
{
    tp_overlap_table wanted;
    fill(meant, &wanted);
    const tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .timeout_ms = 20000}, .link = link};
    cr_assert_eq(tp_run_ranks(&options, choose, s), TP_OK, "%s", tp_last_message());
    cr_assert(same_table(&s->table[0], &wanted) && same_table(&s->table[1], &wanted));
}

/* Whatever each rank thinks of its machine. */
Test(execute_site, all_go_by_the_first_rank)
{
    scene s = {.machine = {machine_with(5e7), machine_with(0)}};
    tp_overlap_table other;
    fill(&s.machine[1], &other);
    check_choice(&s, (tp_link){0, 0}, &s.machine[0]);
    cr_assert(!same_table(&s.table[0], &other), "the two machines ask for the same");
}

Test(execute_site, a_modelled_link_goes_before_the_machines)
{
    scene s = {.machine = {machine_with(0), machine_with(0)}};
    tp_machine linked = machine_with(5e7);
    check_choice(&s, (tp_link){0, 5e7}, &linked);
}

static tp_status share(tp_ctx *ctx, void *arg)
{
    const tp_machine *machine = arg;
    tp_overlap_shape half = layer, wider = layer, deeper = layer;
    half.dtype = TP_DTYPE_BF16;
    wider.cols[0]++;
    deeper.inner[0]++;
    tpi_site first, again, other[3], group;
    tp_comm *tensor = tp_ctx_group(ctx, TP_AXIS_TP); /* the same ranks, another group */
    ctx->desc.machine = machine;
    TPI_TRY(tpi_site_make(ctx, tp_ctx_world(ctx), &gather, &layer, &first));
    TPI_TRY(tpi_site_make(ctx, tp_ctx_world(ctx), &gather, &layer, &again));
    TPI_TRY(tpi_site_make(ctx, tp_ctx_world(ctx), &gather, &half, &other[0]));
    TPI_TRY(tpi_site_make(ctx, tp_ctx_world(ctx), &gather, &wider, &other[1]));
    TPI_TRY(tpi_site_make(ctx, tp_ctx_world(ctx), &gather, &deeper, &other[2]));
    TPI_TRY(tpi_site_make(ctx, tensor, &gather, &layer, &group));
    bool right =
        first.choice == again.choice && first.choice != group.choice && group.choice->comm == tensor;
    for (int i = 0; i < 3; i++)
        right = right && first.choice != other[i].choice;
    const tpi_auto *choice = first.choice;
    for (int i = 0; i < choice->table.classes; i++) {
        int64_t rows = choice->table.entry[i].rows;
        right = right && tpi_site_at(&first, rows) == choice->plan[i];
        right = right && tpi_site_at(&first, rows + 1) == choice->plan[i + 1 < choice->table.classes ? i + 1 : i];
        right = right && tpi_prepared_plan(choice->plan[i])->algorithm == (int)choice->table.entry[i].algorithm;
    }
    return right ? TP_OK : tpi_fail(ctx, TP_ERR_INTERNAL, "another choice, or another entry");
}

/* Layers of one shape on one group share a table; others don't. */
Test(execute_site, tables_are_shared)
{
    tp_machine machine = machine_with(5e7);
    const tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, share, &machine), TP_OK, "%s", tp_last_message());
}

static tp_status choose_endless(tp_ctx *ctx, void *arg)
{
    tpi_site site;
    ctx->desc.machine = arg;
    tp_status status = tpi_site_make(ctx, tp_ctx_world(ctx), &gather, &layer, &site);
    bool told = status == TP_ERR_ARGUMENT && tp_ctx_failure(ctx) == TP_OK &&
                strstr(tp_ctx_message(ctx), "could not choose an overlap algorithm: ") != NULL &&
                strstr(tp_ctx_message(ctx), "costs.gemm_seconds[0] is inf") != NULL;
    return told ? TP_OK : tpi_fail(ctx, TP_ERR_INTERNAL, "%s: %s", tp_status_name(status), tp_ctx_message(ctx));
}

/* Whichever rank asks: the first one's words. */
Test(execute_site, why_there_is_no_choice)
{
    tp_machine machine = machine_with(5e7);
    machine.gemm[TP_DTYPE_F32].flops[0] = 1e-320;
    const tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, choose_endless, &machine), TP_OK, "%s", tp_last_message());
}

#define MANY 16

/* A context's first table of a chain's backward, the longest to make. */
static tp_status choose_among_many(tp_ctx *ctx, void *arg)
{
    tp_overlap_table *table = arg;
    static const tp_plan_desc backward = {
        .algorithm = TP_OVERLAP_AUTO, .pattern = TP_PATTERN_CHAIN_BACKWARD, .ranks = MANY};
    static const tp_overlap_shape chain = {.dtype = TP_DTYPE_F32, .cols = {64, 256}, .inner = {256, 64}};
    tpi_site site;
    TPI_TRY(tpi_site_make(ctx, tp_ctx_world(ctx), &backward, &chain, &site));
    table[tp_ctx_rank(ctx)] = site.choice->table;
    return TP_OK;
}

/* Nothing is broken, so no wait runs into its bound, though one rank has much to do and its peers nothing. */
Test(execute_site, sixteen_ranks_in_time)
{
#ifdef TPT_SANITIZED
    const int64_t bound_ms = 60000;
#else
    const int64_t bound_ms = 3000;
#endif
    static tp_overlap_table table[MANY];
    const tp_run_options options = {.ranks = MANY, .ctx = {.threads = 1, .timeout_ms = bound_ms}};
    cr_assert_eq(tp_run_ranks(&options, choose_among_many, table), TP_OK, "%s", tp_last_message());
    cr_assert_gt(table[0].classes, 0);
    for (int rank = 1; rank < MANY; rank++)
        cr_assert(same_table(&table[rank], &table[0]), "rank %d", rank);
}

/* A lane each beside compute takes two cores a rank. */
Test(execute_site, lanes_share_fewer_cores_than_two_a_rank)
{
    for (int ranks = 1; ranks <= 64; ranks *= 2) {
        cr_assert(tpi_lanes_share_cores(2 * ranks - 1, ranks), "%d ranks", ranks);
        cr_assert(!tpi_lanes_share_cores(2 * ranks, ranks), "%d ranks", ranks);
    }
}

static tp_status see_pulls(tp_ctx *ctx, void *arg)
{
    const bool inlines = tpi_pulls_inline(ctx), *delayed = arg;
    bool right = inlines == (!*delayed && tpi_ctx_lanes_share_cores(ctx));
    ctx->pulling = TPI_PULL_ON_LANE;
    right = right && !tpi_pulls_inline(ctx);
    ctx->pulling = TPI_PULL_INLINE;
    right = right && tpi_pulls_inline(ctx) == !*delayed;
    static const tp_plan_desc pull = {
        .algorithm = TP_OVERLAP_PULL, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2, .chunks = 2};
    for (int i = 0; i < 2; i++) {
        ctx->pulling = i == 0 ? TPI_PULL_BY_CORES : TPI_PULL_INLINE;
        tpi_prepared *prepared;
        TPI_TRY(tpi_plan_get(ctx, i == 0 ? tp_ctx_world(ctx) : tp_ctx_group(ctx, TP_AXIS_TP), &pull, &prepared));
        right = right && tpi_plan_uses_lanes(tpi_prepared_plan(prepared)) == (i == 0 ? !inlines : *delayed);
    }
    return right ? TP_OK : tpi_fail(ctx, TP_ERR_INTERNAL, "pulls %s", inlines ? "inline" : "on a lane");
}

/* Plans of PULL are of one lane where cores are shared, or a test says so, and never where ops run later. */
Test(execute_site, pulls_go_by_the_cores)
{
    for (int delayed = 0; delayed < 2; delayed++) {
        bool later = delayed != 0;
        const tp_run_options options = {
            .ranks = 2, .ctx = {.threads = 1, .lane_delay_seed = later ? 5 : 0, .timeout_ms = 20000}};
        cr_assert_eq(tp_run_ranks(&options, see_pulls, &later), TP_OK, "%s", tp_last_message());
    }
}
