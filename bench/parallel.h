/* What layers, model and sweep have in common: degrees, threads, shares of time and of peak. */
#ifndef BENCH_PARALLEL_H
#define BENCH_PARALLEL_H

#include "command.h"
#include "team.h"

/* Compute threads of each of `ranks` ranks. */
int bench_threads_for(const bench_call *call, int ranks);

/* Start options of a world of `ranks` thread ranks with `threads` compute threads each. */
tp_run_options bench_run_options(const bench_call *call, int ranks, int threads);

/* Refuses what concerns all layers and models: an instruction set that isn't there, dtypes that can't be trained. */
int bench_check_parallel(bench_call *call);

/* A team for so many ranks of this call's device. */
void bench_team_begin(const bench_call *call, bench_team *team, int ranks);

/* The most by which a tensor from a GPU may be off the CPU's, as a part of its norm. */
double bench_cpu_tolerance(tp_dtype dtype, bool tf32);

/* Reads --link into the options; refuses what is none. bench_check_parallel does it too. */
int bench_take_link(bench_call *call);
/* Whether rows must be labelled. */
bool bench_link_modelled(const bench_call *call);

/* Refuses a link on which a tensor of so many bytes, the largest of a pass that moves, takes too long. After the link
 * was read. */
int bench_check_link(bench_call *call, double bytes);
/* Refuses --machine where nothing would go by it. */
int bench_check_machine(bench_call *call);

/* The one --overlap and --chunks of a command that takes one; none and 0 if they aren't given. After the link was
 * read. */
int bench_take_overlap(bench_call *call, tp_overlap *overlap, int *chunks);

/* True where equal bits are promised: sums are those of the tree, and both degrees divide the number of virtual
 * ranks. */
bool bench_bits_promised(const bench_call *call, int a, int b);

/* "yes", "NO", "differs (not promised)": enters the cell, and a failed check where a promise was broken. */
void bench_same_cell(bench_call *call, bool same, bool promised, const char *what);

/* Peak of the cores that so many threads in all can use, or of the GPU, FLOP/s. Measured once a dtype. */
typedef struct bench_peaks {
    double core[TP_DTYPE_COUNT]; /* FLOP/s of one core, or the GPU; 0: not measured yet */
} bench_peaks;
double bench_peak_for(bench_call *call, bench_peaks *peaks, tp_dtype dtype, int threads);

#endif
