/* Every plan of every generator is proven. TPT_FULL_GRID=1: 1 to 16 ranks x 0 to 16 chunks; else all of it up to 8 ranks, and some numbers of chunks above. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <tp/overlap.h>

typedef struct grid {
    int plans;
    long ops;
    int largest;
} grid;

static void prove(const tp_plan_desc *desc, grid *g)
{
    tp_plan *plan;
    tp_proof proof;
    cr_assert_eq(tp_plan_create(desc, &plan), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK, "%s", tp_last_message());
    cr_assert(proof.proven && proof.fault == TP_FAULT_NONE && proof.message[0] == '\0', "%s %s, %d ranks x %d chunks: rank %d, op %d: %s",
              tp_overlap_name(desc->algorithm), tp_pattern_name(desc->pattern), desc->ranks, desc->chunks, proof.rank, proof.op, proof.message);
    int ops = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        ops += plan->rank[rank].count;
    cr_assert_eq(proof.ops, ops);
    tp_plan_destroy(plan);
    g->plans++;
    g->ops += ops;
    g->largest = g->largest > ops ? g->largest : ops;
}

static bool wanted(int ranks, int chunks)
{
    static const bool some[TP_PLAN_MAX_CHUNKS + 1] = {[0] = true, [1] = true, [2] = true, [3] = true, [5] = true, [8] = true, [13] = true, [16] = true};
#ifdef TPT_SANITIZED
    return ranks <= 4 || (some[chunks] && chunks <= 5);
#else
    return ranks <= 8 || some[chunks] || getenv("TPT_FULL_GRID") != NULL;
#endif
}

static void prove_all(tp_overlap algorithm)
{
    grid g = {0, 0, 0};
    for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
        for (int ranks = 1; ranks <= 16; ranks++)
            for (int chunks = 0; chunks <= TP_PLAN_MAX_CHUNKS; chunks++)
                if (wanted(ranks, chunks))
                    prove(&(tp_plan_desc){algorithm, (tp_pattern)pattern, ranks, chunks}, &g);
    cr_log_info("%s: %d plans proven, %ld ops, %d in the largest plan", tp_overlap_name(algorithm), g.plans, g.ops, g.largest);
}

Test(generators, none)
{
    prove_all(TP_OVERLAP_NONE);
}

Test(generators, bulk)
{
    prove_all(TP_OVERLAP_BULK);
}

Test(generators, ring)
{
    prove_all(TP_OVERLAP_RING);
}

Test(generators, pipeline)
{
    prove_all(TP_OVERLAP_PIPELINE);
}

Test(generators, pull)
{
    prove_all(TP_OVERLAP_PULL);
}

Test(generators, direct)
{
    prove_all(TP_OVERLAP_DIRECT);
}

/* The largest number of ranks. */
Test(generators, many_ranks)
{
    grid g = {0, 0, 0};
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
        prove(&(tp_plan_desc){(tp_overlap)algorithm, TP_PATTERN_CHAIN, TP_PLAN_MAX_RANKS, 2}, &g);
}
