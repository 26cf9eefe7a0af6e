#include "mutant_trials.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "interpreter.h"
#include "mutants.h"

/* Of a mutant that verify calls proven. */
#ifdef TPT_SANITIZED
#define RUNS 4
#else
#define RUNS 20
#endif

typedef struct tally {
    int plans, mutants[TPT_MUTATIONS], caught[TPT_MUTATIONS][TP_FAULTS];
    int confirmed;       /* proven mutants that were run */
    int tried, shown;    /* caught mutants that were run, and those that went wrong then */
    int confirm_at_most; /* a plan */
} tally;

static void complain(const tp_plan *plan, const tpt_mutant *mutant, tpt_run run)
{
    size_t length = tp_plan_print(plan, NULL, 0);
    char *text = tpt_allocate(length + 1);
    tp_plan_print(plan, text, length + 1);
    static const char *const ends[] = {"right", "stuck", "trespass", "wrong"};
    cr_assert_fail("%s (rank %d, op %d, which %d, value %d) is proven, but a run ends %s:\n%s",
                   tpt_mutation_words(mutant->mutation), mutant->rank, mutant->op, mutant->which, mutant->value,
                   ends[run], text);
}

/* The worst of some runs. */
static tpt_run run_often(const tp_plan *plan, int runs, int seed)
{
    for (int i = 0; i < runs; i++) {
        tpt_run run = tpt_interpret(plan, (uint64_t)(seed + i), i % 2 == 0);
        if (run != TPT_RUN_RIGHT)
            return run;
    }
    return TPT_RUN_RIGHT;
}

/* Whether mutant i is one of about `most` of `count` that are looked at closer. */
static bool is_sample(int i, int count, int most)
{
    return count <= most || (uint32_t)((uint32_t)i * 2654435761u) < (uint32_t)(4294967295.0 * most / count);
}

static void try_mutant(tpt_mutator *mutator, int i, tally *t)
{
    const tpt_mutant *mutant = tpt_mutator_mutant(mutator, i);
    const tp_plan *plan = tpt_mutator_plan(mutator, i);
    int count = tpt_mutator_count(mutator);
    tp_proof proof;
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK, "%s", tp_last_message());
    cr_assert_eq(proof.proven, proof.fault == TP_FAULT_NONE);
    t->mutants[mutant->mutation]++;
    t->caught[mutant->mutation][proof.fault]++;
    if (proof.proven && is_sample(i, count, 16 * t->confirm_at_most)) {
        tpt_run run = run_often(plan, RUNS, i);
        if (run != TPT_RUN_RIGHT)
            complain(plan, mutant, run);
        t->confirmed++;
    } else if (proof.fault >= TP_FAULT_DEADLOCK && is_sample(i, count, t->confirm_at_most)) {
        t->tried++;
        t->shown += run_often(plan, RUNS, i) != TPT_RUN_RIGHT;
    }
}

/* At most `most` mutants of a plan. */
static void try_plan(const tp_plan_desc *desc, int most, tally *t)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_create(desc, &plan), TP_OK);
    int run = (int)run_often(plan, 4, 1);
    cr_assert_eq(run, TPT_RUN_RIGHT, "%s %s, %d ranks, %d chunks: %d", tp_overlap_name(desc->algorithm),
                 tp_pattern_name(desc->pattern), desc->ranks, desc->chunks, run);
    tpt_mutator *mutator = tpt_mutator_create(plan);
    int count = tpt_mutator_count(mutator);
    for (int i = 0; i < count; i++)
        if (is_sample(i, count, most))
            try_mutant(mutator, i, t);
    tpt_mutator_destroy(mutator);
    tp_plan_destroy(plan);
    t->plans++;
}

static void report(const char *what, const tally *t)
{
    int mutants = 0, faults[TP_FAULTS] = {0};
    for (int m = 0; m < TPT_MUTATIONS; m++) {
        if (t->mutants[m] == 0)
            continue;
        const int *caught = t->caught[m];
        cr_log_info("  %-18s %7d mutants: field %d, unmet %d, deadlock %d, race %d, result %d; harmless %d",
                    tpt_mutation_words((tpt_mutation)m), t->mutants[m], caught[TP_FAULT_FIELD], caught[TP_FAULT_UNMET],
                    caught[TP_FAULT_DEADLOCK], caught[TP_FAULT_RACE], caught[TP_FAULT_RESULT], caught[TP_FAULT_NONE]);
        mutants += t->mutants[m];
        for (int f = 0; f < TP_FAULTS; f++)
            faults[f] += caught[f];
    }
    cr_log_info("%s: %d plans, %d mutants: %d caught, %d harmless (%d of them run %d times each); of %d caught ones, "
                "runs show %d",
                what, t->plans, mutants, mutants - faults[TP_FAULT_NONE], faults[TP_FAULT_NONE], t->confirmed, RUNS,
                t->tried, t->shown);
}

/* Plans that are those of `none` under another name. */
static bool is_none(tp_overlap algorithm, tp_pattern pattern)
{
    return algorithm != TP_OVERLAP_NONE &&
           (pattern == TP_PATTERN_GEMM ||
            (algorithm == TP_OVERLAP_BULK && pattern != TP_PATTERN_BACKWARD && pattern != TP_PATTERN_BACKWARD_REDUCE &&
             pattern != TP_PATTERN_ROW_BACKWARD && pattern < TP_PATTERN_CHAIN_BACKWARD));
}

static bool is_small(int ranks, int chunks)
{
#ifdef TPT_SANITIZED
    return ranks * chunks <= 4;
#elif defined __OPTIMIZE__
    return ranks <= 4 && chunks <= 4;
#else
    return ranks <= 3 && chunks <= 3;
#endif
}

void tpt_try_all_mutants(tp_overlap algorithm, bool one_lane)
{
    tally t = {.confirm_at_most = 20};
    for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
        for (int ranks = 1; ranks <= 4; ranks++)
            for (int chunks = 1; chunks <= 4; chunks++)
                if (is_small(ranks, chunks) && !is_none(algorithm, (tp_pattern)pattern))
                    try_plan(&(tp_plan_desc){algorithm, (tp_pattern)pattern, ranks, chunks, one_lane}, 1 << 30, &t);
    report(one_lane ? "one lane" : tp_overlap_name(algorithm), &t);
}

/* Fewer and smaller where runs are slow. */
#ifdef TPT_SANITIZED
#define SAMPLED_SIZES                                                                                                  \
    {5, 2},                                                                                                            \
    {                                                                                                                  \
        3, 5                                                                                                           \
    }
#define SAMPLED 4
#else
#define SAMPLED_SIZES                                                                                                  \
    {5, 5}, {5, 2}, {3, 7}, {8, 3}, {7, 1},                                                                            \
    {                                                                                                                  \
        16, 2                                                                                                          \
    }
#define SAMPLED 40
#endif

void tpt_try_some_mutants(void)
{
    static const int sizes[][2] = {SAMPLED_SIZES};
    tally t = {.confirm_at_most = 3};
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
        for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
                if (!is_none((tp_overlap)algorithm, (tp_pattern)pattern))
                    try_plan(&(tp_plan_desc){.algorithm = (tp_overlap)algorithm,
                                             .pattern = (tp_pattern)pattern,
                                             .ranks = sizes[i][0],
                                             .chunks = sizes[i][1]},
                             SAMPLED, &t);
    report("sampled", &t);
}
