/* tp_bench collective --peer: collectives of thread ranks beside those of MPI libraries. */
#ifndef BENCH_COLLECTIVE_PEER_H
#define BENCH_COLLECTIVE_PEER_H

#include "collective_case.h"
#include "command.h"
#include "notes.h"
#include "peers/mpi_shared.h"

/* Refuses what peers don't do, and puts defaults where nothing is given. */
int bench_check_peers(bench_call *call);

/* Measures and fills the table. `largest`: bytes of a buffer; next: from size to size. */
int bench_collective_peers(bench_call *call, int64_t (*next)(const bench_options *options, int64_t size));

/* Seconds that a collective takes on one side, whose figures are by bench_mpi_kind: alone, or a cycle less its frame
 * (net). */
#define BENCH_MPI_KINDS (BENCH_MPI_FRAME + 1)
double bench_collective_seconds(const bench_team_figure side[BENCH_MPI_KINDS], bool net);

/* Seconds of the best peer by ours. A peer that isn't there is NaN; so is the result without one, and where what it is
 * made of has no clean sample (kept 0) or is less than nothing. */
double bench_collective_ratio(double own, const double *peers, int count, int kept);

#endif
