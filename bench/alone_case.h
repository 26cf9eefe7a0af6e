/* What one pass of a layer computes, and what it moves, each alone: the GEMMs and the attention core at full speed,
 * unchunked, with their fused epilogues; and the transfers without the adds. Overlap is measured against both. */
#ifndef BENCH_ALONE_CASE_H
#define BENCH_ALONE_CASE_H

#include "layer_case.h"

typedef struct bench_alone {
    bench_layer *layer; /* borrowed; has run forward */
    bool backward;
    void *left, *right, *result; /* operands and results of all GEMMs in turn, and of all transfers */
    size_t bytes;                /* of each */
    int64_t rows[TP_PLAN_MAX_RANKS]; /* each rank's tokens */
    int64_t own[TP_PLAN_MAX_RANKS];  /* this rank's, once a rank */
    double moved;                    /* bytes that a call of bench_alone_comm moves over this rank's busier link */
} bench_alone;

tp_status bench_alone_open(bench_alone *alone, bench_layer *layer, bool backward);
void bench_alone_close(bench_alone *alone);

/* For bench_team_compare. */
tp_status bench_alone_compute(void *alone);
tp_status bench_alone_comm(void *alone);

#endif
