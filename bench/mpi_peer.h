/* An MPI library as the other side of a comparison: two processes that do the same collectives, on the same cores, when
 * they are asked for a sample. */
#ifndef BENCH_MPI_PEER_H
#define BENCH_MPI_PEER_H

#include "keeper.h"
#include "options.h"
#include "peers/mpi_shared.h"

#include <sys/types.h>

/* By bench_mpi_names. */
typedef enum bench_mpi_library { BENCH_OPENMPI = 0, BENCH_MPICH, BENCH_MPI_LIBRARIES } bench_mpi_library;

typedef struct bench_mpi_peer {
    bench_mpi_library library;
    bench_mpi_shared *shared;
    bench_keeper keeper; /* of the group that mpirun is in */
    pid_t child; /* mpirun */
} bench_mpi_peer;

/* Starts the processes with buffers of so many bytes, rank r on core[r], and waits until they sleep. False, with a
 * message that says why, if it can't. */
bool bench_mpi_start(bench_mpi_peer *peer, bench_mpi_library library, int64_t largest, const int core[BENCH_MPI_RANKS],
                     char message[BENCH_MESSAGE]);

/* Called by both ranks, with the same sample: rank 0 asks, and each waits, asleep, for the process of its number. False
 * if the peer is gone. */
typedef struct bench_mpi_sample {
    int operation, kind;
    bool in_place;
    int64_t count, repeats;
} bench_mpi_sample;
void bench_mpi_ask(bench_mpi_peer *peer, const bench_mpi_sample *sample);
bool bench_mpi_wait(bench_mpi_peer *peer, int rank, unsigned request);

void bench_mpi_stop(bench_mpi_peer *peer);

#endif
