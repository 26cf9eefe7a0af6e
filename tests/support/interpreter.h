/* Runs a plan on numbers, its lanes in a random order: what would happen on a machine on which everything takes its own
 * time. An op takes time too: what it writes is garbage until it ends, and what it reads must still be the same then.
 */
#ifndef TPT_INTERPRETER_H
#define TPT_INTERPRETER_H

#include <tp/overlap.h>

typedef enum tpt_run {
    TPT_RUN_RIGHT = 0,
    TPT_RUN_STUCK,    /* nothing more can happen, and not all is done */
    TPT_RUN_TRESPASS, /* memory of a rank touched before its ENTER or after its LEAVE */
    TPT_RUN_WRONG     /* other results than the pattern's definition */
} tpt_run;

/* One run. `inline_compute`: an op on the compute lane blocks the issue of those after it. The plan's fields must be in
 * range. */
tpt_run tpt_interpret(const tp_plan *plan, uint64_t seed, bool inline_compute);

#endif
