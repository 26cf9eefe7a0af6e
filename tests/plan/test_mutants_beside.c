/* The other half of test_mutants.c. */
#include <criterion/criterion.h>

#include "support/mutant_trials.h"

Test(mutants, ring)
{
    tpt_try_all_mutants(TP_OVERLAP_RING, false);
}

Test(mutants, direct)
{
    tpt_try_all_mutants(TP_OVERLAP_DIRECT, false);
}

Test(mutants, pull_in_one_lane)
{
    tpt_try_all_mutants(TP_OVERLAP_PULL, true);
}
