/* The MPI side of `tp_bench collective --peer`: the same collectives in two processes on the same cores. Started by
 * tp_bench with mpirun; argument: the file of the memory that both share. */
#include "mpi_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* By bench_operation. */
enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };

typedef struct peer {
    bench_mpi_shared *shared;
    int rank;
    float *in, *out;
    volatile uint32_t kept;
} peer;

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static long switches(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

static int call(peer *p)
{
    const bench_mpi_shared *shared = p->shared;
    int count = (int)shared->count, part = count / BENCH_MPI_RANKS;
    float *in = p->in, *out = p->out;
    switch (shared->operation) {
    case ALL_REDUCE:
        return MPI_Allreduce(shared->in_place ? MPI_IN_PLACE : in, shared->in_place ? in : out, count, MPI_FLOAT,
                             MPI_SUM, MPI_COMM_WORLD);
    case REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(shared->in_place ? MPI_IN_PLACE : in, shared->in_place ? in : out, part,
                                        MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    default:
        return MPI_Allgather(shared->in_place ? MPI_IN_PLACE : in + p->rank * part, part, MPI_FLOAT, out, part,
                             MPI_FLOAT, MPI_COMM_WORLD);
    }
}

/* In place a reduction works on `in` and a gather on `out`. */
static int once(peer *p)
{
    const bench_mpi_shared *shared = p->shared;
    int64_t part = shared->count / BENCH_MPI_RANKS;
    int gathers = shared->operation == ALL_GATHER;
    if (shared->kind == BENCH_MPI_ALONE)
        return call(p);
    float *from = gathers ? (shared->in_place ? p->out : p->in) + p->rank * part : p->in;
    bench_mpi_produce(from, gathers ? part : shared->count, 1.0f);
    int error = shared->kind == BENCH_MPI_CYCLE ? call(p) : MPI_SUCCESS;
    const float *to = gathers || !shared->in_place ? p->out : p->in;
    p->kept ^= bench_mpi_consume(to, shared->operation == REDUCE_SCATTER ? part : shared->count);
    return error;
}

static int take_sample(peer *p)
{
    bench_mpi_shared *shared = p->shared;
    int error = once(p); /* untimed: the library is in the caches again */
    MPI_Barrier(MPI_COMM_WORLD);
    long before = switches();
    double ran = now(CLOCK_THREAD_CPUTIME_ID), start = now(CLOCK_MONOTONIC);
    for (int64_t i = 0; i < shared->repeats && error == MPI_SUCCESS; i++)
        error = once(p);
    double seconds = now(CLOCK_MONOTONIC) - start, lost = seconds - (now(CLOCK_THREAD_CPUTIME_ID) - ran);
    shared->rank[p->rank].seconds = seconds / (double)shared->repeats;
    shared->rank[p->rank].lost = lost / (double)shared->repeats;
    shared->rank[p->rank].switched = switches() - before;
    return error;
}

/* Sleeps until the word differs from `seen`; not longer than a second at a time, to see whether tp_bench is still
 * there. */
static int sleep_on(const bench_mpi_shared *shared, atomic_uint *word, unsigned seen)
{
    const struct timespec second = {1, 0};
    while (atomic_load(word) == seen && !atomic_load(&shared->stop)) {
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &second, NULL, 0);
        if (kill((pid_t)shared->owner, 0) != 0)
            return 0;
    }
    return !atomic_load(&shared->stop);
}

static void answer(peer *p, unsigned request)
{
    atomic_uint *done = &p->shared->rank[p->rank].done;
    atomic_store(done, request);
    syscall(SYS_futex, done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int serve(peer *p)
{
    unsigned seen = 1;
    answer(p, seen);
    while (sleep_on(p->shared, &p->shared->request, seen)) {
        seen = atomic_load(&p->shared->request);
        if (take_sample(p) != MPI_SUCCESS)
            return 1;
        answer(p, seen);
    }
    return 0;
}

static float *buffer(size_t bytes)
{
    size_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *memory = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    char *aligned = (char *)(((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    madvise(aligned, size, MADV_HUGEPAGE);
    memset(aligned, 0, size);
    return (float *)(void *)aligned;
}

int main(int argc, char **argv)
{
    int file = argc == 2 ? open(argv[1], O_RDWR) : -1;
    void *memory =
        file >= 0 ? mmap(NULL, sizeof(bench_mpi_shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        fprintf(stderr, "started by tp_bench only: %s\n", strerror(errno));
        return 2;
    }
    peer p = {.shared = memory};
    int size = 0, length = 0;
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(library, &length);
    if (size != BENCH_MPI_RANKS)
        MPI_Abort(MPI_COMM_WORLD, 2);
    if (p.rank == 0)
        snprintf(p.shared->library, sizeof p.shared->library, "%.200s", library);
    if (p.shared->core[p.rank] >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(p.shared->core[p.rank], &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    p.in = buffer((size_t)p.shared->largest);
    p.out = buffer((size_t)p.shared->largest);
    int status = p.in != NULL && p.out != NULL ? serve(&p) : 3;
    if (status != 0)
        MPI_Abort(MPI_COMM_WORLD, status);
    MPI_Finalize();
    return 0;
}
