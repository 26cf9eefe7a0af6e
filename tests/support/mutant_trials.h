/* Mutants of generated plans (mutants.h): verify catches each, or it is harmless, which runs with their lanes in random
 * order confirm. Counts are printed. */
#ifndef TPT_MUTANT_TRIALS_H
#define TPT_MUTANT_TRIALS_H

#include <tp/overlap.h>

/* All mutants of all plans of an algorithm up to 4 ranks x 4 chunks; of smaller ones in builds without optimization or
 * with sanitizers. */
void tpt_try_all_mutants(tp_overlap algorithm, bool one_lane);

/* Samples of larger plans of all algorithms. */
void tpt_try_some_mutants(void);

#endif
