/* What tp_bench and the two processes of an MPI peer share: one page of memory. tp_bench asks for a sample, and the
 * processes, which sleep until then, take it. */
#ifndef BENCH_MPI_SHARED_H
#define BENCH_MPI_SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_MPI_RANKS 2

typedef enum bench_mpi_kind {
    BENCH_MPI_ALONE = 0, /* the collective */
    BENCH_MPI_CYCLE,     /* its input written before, its output read afterwards */
    BENCH_MPI_FRAME      /* only these two */
} bench_mpi_kind;

typedef struct bench_mpi_shared {
    int64_t owner;              /* tp_bench's process id: where it is gone, so are these */
    int64_t largest;            /* bytes of a buffer */
    int core[BENCH_MPI_RANKS];  /* -1: not pinned */
    atomic_uint request;        /* counts the samples asked for; a word to sleep on */
    atomic_uint stop;
    int operation;              /* as in bench_operation */
    int kind, in_place;
    int64_t count, repeats;     /* f32 elements of the whole; calls in the sample */
    struct {
        _Alignas(64) atomic_uint done; /* the request that was answered; 1 after the start; a word to sleep on */
        double seconds;                /* of one call */
        double lost;                   /* of these the thread did not run */
        long switched;                 /* involuntary switches during the sample */
    } rank[BENCH_MPI_RANKS];
    _Alignas(64) char library[256];
} bench_mpi_shared;

/* Writes all of an input, and reads all of an output: what a layer does around a collective. */
static inline void bench_mpi_produce(float *data, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        data[i] = value;
}

static inline uint32_t bench_mpi_consume(const void *data, int64_t count)
{
    const uint32_t *words = data;
    uint32_t mixed = 0;
    for (int64_t i = 0; i < count; i++)
        mixed ^= words[i];
    return mixed;
}

#endif
