/* Plans with one fault put in (support/mutant_trials.h). A program of half the work: test_mutants_beside.c is the
 * other, so that two cores share it. */
#include <criterion/criterion.h>

#include "support/mutant_trials.h"

Test(mutants, none)
{
    tpt_try_all_mutants(TP_OVERLAP_NONE, false);
}

Test(mutants, bulk)
{
    tpt_try_all_mutants(TP_OVERLAP_BULK, false);
}

Test(mutants, pipeline)
{
    tpt_try_all_mutants(TP_OVERLAP_PIPELINE, false);
}

Test(mutants, pull)
{
    tpt_try_all_mutants(TP_OVERLAP_PULL, false);
}

Test(mutants, sampled)
{
    tpt_try_some_mutants();
}
