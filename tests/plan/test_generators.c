/* Every plan of every generator is proven, for 1 to 16 ranks x 0 to 16 chunks; not where that takes minutes, without
 * optimisation or under a sanitizer. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
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
    cr_assert(proof.proven && proof.fault == TP_FAULT_NONE && proof.message[0] == '\0',
              "%s%s %s, %d ranks x %d chunks: rank %d, op %d: %s", tp_overlap_name(desc->algorithm),
              desc->one_lane ? ", one lane," : "", tp_pattern_name(desc->pattern), desc->ranks, desc->chunks,
              proof.rank, proof.op, proof.message);
    int ops = 0, beside = 0;
    for (int rank = 0; rank < plan->ranks; rank++) {
        ops += plan->rank[rank].count;
        for (int i = 0; i < plan->rank[rank].count; i++)
            beside += plan->rank[rank].op[i].lane != TP_LANE_COMPUTE;
    }
    cr_assert(beside == 0 || !desc->one_lane, "%d ops beside compute", beside);
    cr_assert_eq(proof.ops, ops);
    tp_plan_destroy(plan);
    g->plans++;
    g->ops += ops;
    g->largest = g->largest > ops ? g->largest : ops;
}

/* All where it's quick; a second compiler's plans are the same. */
static bool wanted(int ranks, int chunks)
{
#if defined __OPTIMIZE__ && !defined TPT_SANITIZED && !defined __clang__
    (void)ranks;
    (void)chunks;
    return true;
#else
    return ranks <= 4 || chunks <= 3 || chunks == 5;
#endif
}

static void prove_all(tp_overlap algorithm, bool one_lane)
{
    grid g = {0, 0, 0};
    for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
        for (int ranks = 1; ranks <= 16; ranks++)
            for (int chunks = 0; chunks <= TP_PLAN_MAX_CHUNKS; chunks++)
                if (wanted(ranks, chunks))
                    prove(&(tp_plan_desc){algorithm, (tp_pattern)pattern, ranks, chunks, one_lane}, &g);
    cr_log_info("%s%s: %d plans proven, %ld ops, %d in the largest plan", tp_overlap_name(algorithm),
                one_lane ? ", one lane" : "", g.plans, g.ops, g.largest);
}

Test(generators, none)
{
    prove_all(TP_OVERLAP_NONE, false);
}

Test(generators, bulk)
{
    prove_all(TP_OVERLAP_BULK, false);
}

Test(generators, ring, .timeout = 240)
{
    prove_all(TP_OVERLAP_RING, false);
}

Test(generators, pipeline)
{
    prove_all(TP_OVERLAP_PIPELINE, false);
}

Test(generators, pull, .timeout = 240)
{
    prove_all(TP_OVERLAP_PULL, false);
}

Test(generators, pull_in_one_lane, .timeout = 240)
{
    prove_all(TP_OVERLAP_PULL, true);
}

Test(generators, direct, .timeout = 240)
{
    prove_all(TP_OVERLAP_DIRECT, false);
}

/* The largest number of ranks. */
Test(generators, many_ranks)
{
    grid g = {0, 0, 0};
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
        prove(&(tp_plan_desc){(tp_overlap)algorithm, TP_PATTERN_CHAIN, TP_PLAN_MAX_RANKS, 2, false}, &g);
    prove(&(tp_plan_desc){TP_OVERLAP_PULL, TP_PATTERN_CHAIN, TP_PLAN_MAX_RANKS, 2, true}, &g);
}

#ifndef TPT_SANITIZED

/* The process's own allocations, of which one can be made to fail. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void __libc_free(void *memory);

static int allowed = -1; /* until one fails; -1: none does */
static int live;

static bool fails(void)
{
    return allowed >= 0 && allowed-- == 0;
}

void *malloc(size_t bytes)
{
    void *memory = fails() ? NULL : __libc_malloc(bytes);
    live += memory != NULL;
    return memory;
}

void *calloc(size_t count, size_t bytes)
{
    void *memory = fails() ? NULL : __libc_calloc(count, bytes);
    live += memory != NULL;
    return memory;
}

void *realloc(void *memory, size_t bytes)
{
    void *larger = fails() ? NULL : __libc_realloc(memory, bytes);
    live += larger != NULL && memory == NULL;
    return larger;
}

void free(void *memory)
{
    live -= memory != NULL;
    __libc_free(memory);
}

static tp_status create(void *text, tp_plan **plan)
{
    (void)text;
    return tp_plan_create(&(tp_plan_desc){TP_OVERLAP_RING, TP_PATTERN_BACKWARD, 2, 2, false}, plan);
}

static tp_status create_in_one_lane(void *text, tp_plan **plan)
{
    (void)text;
    return tp_plan_create(&(tp_plan_desc){TP_OVERLAP_PULL, TP_PATTERN_BACKWARD, 2, 2, true}, plan);
}

static tp_status parse(void *text, tp_plan **plan)
{
    return tp_plan_parse(text, plan);
}

static tp_status verify(void *plan, tp_plan **out)
{
    tp_proof proof;
    *out = NULL;
    tp_status status = tp_plan_verify(plan, &proof);
    return status == TP_OK && !proof.proven ? TP_ERR_INTERNAL : status;
}

/* Each allocation fails in turn: a clean error, and nothing leaks. */
static void fail_each(tp_status (*call)(void *, tp_plan **), void *argument, const char *what)
{
    tp_status status = TP_ERR_MEMORY;
    int n = 0;
    for (; status != TP_OK; n++) {
        tp_plan *plan = NULL;
        int before = live;
        allowed = n;
        status = call(argument, &plan);
        allowed = -1;
        if (status == TP_OK)
            tp_plan_destroy(plan);
        int after = live;
        cr_assert(status == TP_OK ||
                      (status == TP_ERR_MEMORY && plan == NULL && strstr(tp_last_message(), "memory") != NULL),
                  "%s, allocation %d: %s", what, n, tp_last_message());
        cr_assert_eq(after, before, "%s, allocation %d: leaks", what, n);
    }
    cr_assert_gt(n, 2, "%s: %d allocations", what, n);
}

Test(generators, without_memory)
{
    tp_plan *plan;
    cr_assert_eq(create(NULL, &plan), TP_OK);
    char text[8192];
    cr_assert_lt(tp_plan_print(plan, text, sizeof text), sizeof text);
    fail_each(create, NULL, "create");
    fail_each(create_in_one_lane, NULL, "create in one lane");
    fail_each(verify, plan, "verify");
    fail_each(parse, text, "parse");
    tp_plan_destroy(plan);
}

#endif
