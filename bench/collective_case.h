/* One collective on one rank: buffers, the call, formulas of nccl-tests, and a check against exact results. */
#ifndef BENCH_COLLECTIVE_CASE_H
#define BENCH_COLLECTIVE_CASE_H

#include "options.h"

/* By the names in bench_operation_names. */
typedef enum bench_operation {
    BENCH_ALL_REDUCE = 0,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_BROADCAST,
    BENCH_ALL_TO_ALL,
    BENCH_SENDRECV,
    BENCH_OPERATIONS
} bench_operation;

typedef struct bench_collective {
    bench_operation operation;
    tp_all_reduce_algorithm algorithm;
    tp_reduce_op reduce;
    tp_dtype dtype;
    bool in_place;
    int64_t count; /* elements of the whole: size / bytes of one, for all_to_all rounded down to ranks */
    int ranks, rank;
    tp_ctx *ctx;
    void *in, *out; /* `count` elements each */
    /* The call's arguments, by bench_collective_prepare. */
    tp_tensor from, to;
    tp_reduce_desc desc;
} bench_collective;

/* Elements for a size in bytes. */
int64_t bench_collective_count(bench_operation operation, int64_t bytes, tp_dtype dtype, int ranks);

/* Whether the operation exists in place, out of place. */
bool bench_collective_has(bench_operation operation, bool in_place);
bool bench_collective_reduces(bench_operation operation);

/* busbw = algbw * this: what a link carries at least, whatever the algorithm. */
double bench_collective_factor(bench_operation operation, int ranks);

/* What else is set is what is called: its arguments are made before it is timed, as an MPI program has its own. */
void bench_collective_prepare(bench_collective *collective);
tp_status bench_collective_call(const bench_collective *collective);

/* Fills the buffers, calls once, and counts wrong elements of this rank's result. Collective. */
tp_status bench_collective_check(const bench_collective *collective, int64_t *wrong);

#endif
