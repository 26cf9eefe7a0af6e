/* tp_bench collective --peer: collectives of thread ranks beside those of MPI libraries. */
#ifndef BENCH_COLLECTIVE_PEER_H
#define BENCH_COLLECTIVE_PEER_H

#include "collective_case.h"
#include "command.h"

/* Refuses what peers don't do, and puts defaults where nothing is given. */
int bench_check_peers(bench_call *call);

/* Measures and fills the table. `largest`: bytes of a buffer; next: from size to size. */
int bench_collective_peers(bench_call *call, int64_t (*next)(const bench_options *options, int64_t size));

#endif
