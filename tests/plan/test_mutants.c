/* Plans with one fault put in (support/mutant_trials.h). A program of half the work: test_mutants_beside.c is the
 * other, so that two cores share it. */
#include <criterion/criterion.h>

#include "support/mutant_trials.h"

Test(mutants, none)
{
    tpt_try_all_mutants(TP_OVERLAP_NONE);
}

Test(mutants, bulk)
{
    tpt_try_all_mutants(TP_OVERLAP_BULK);
}

Test(mutants, pipeline)
{
    tpt_try_all_mutants(TP_OVERLAP_PIPELINE);
}

Test(mutants, pull)
{
    tpt_try_all_mutants(TP_OVERLAP_PULL);
}

Test(mutants, sampled)
{
    tpt_try_some_mutants();
}
