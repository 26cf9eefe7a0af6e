#include "mpi_peer.h"

#include "companion.h"
#include "measure.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_SECONDS 30
#define SAMPLE_SECONDS 60

/* Where configure found mpirun; empty: that library is not there. */
#ifndef BENCH_MPIRUN_OPENMPI
#define BENCH_MPIRUN_OPENMPI ""
#endif
#ifndef BENCH_MPIRUN_MPICH
#define BENCH_MPIRUN_MPICH ""
#endif

static const char *const mpirun[BENCH_MPI_LIBRARIES] = {BENCH_MPIRUN_OPENMPI, BENCH_MPIRUN_MPICH};
static const char *const package[BENCH_MPI_LIBRARIES] = {"libopenmpi-dev", "libmpich-dev"};

static bool helper_path(bench_mpi_library library, char *path, size_t bytes)
{
    char name[32];
    snprintf(name, sizeof name, "tp_peer_%s", bench_mpi_names[library]);
    return bench_companion(name, NULL, path, bytes);
}

static _Noreturn void become_mpirun(const bench_mpi_peer *peer, const char *helper, const char *file)
{
    if (setpgid(0, peer->keeper.group) != 0)
        _exit(126);
    /* Both allocate in every call: their memory is to stay theirs. */
    setenv("MALLOC_MMAP_MAX_", "0", 1);
    setenv("MALLOC_TRIM_THRESHOLD_", "100000000000", 1);
    setenv("MALLOC_TOP_PAD_", "268435456", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    int null = open("/dev/null", O_RDWR);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    const char *run = mpirun[peer->library];
    if (peer->library == BENCH_OPENMPI)
        execl(run, run, "-n", "2", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "0", helper,
              file, (char *)NULL);
    else
        execl(run, run, "-n", "2", helper, file, (char *)NULL);
    _exit(127);
}

/* Sleeps until the process of this rank has answered. */
static bool wait_for(bench_mpi_peer *peer, int rank, unsigned request, double seconds)
{
    atomic_uint *done = &peer->shared->rank[rank].done;
    const struct timespec while_ = {0, 200000000};
    double deadline = bench_now() + seconds;
    for (unsigned seen; (seen = atomic_load(done)) != request;) {
        syscall(SYS_futex, done, FUTEX_WAIT, seen, &while_, NULL, 0);
        bool gone = atomic_load(&peer->shared->stop) || bench_now() > deadline ||
                    (rank == 0 && waitpid(peer->child, NULL, WNOHANG) != 0);
        if (gone && atomic_load(done) != request) {
            atomic_store(&peer->shared->stop, 1); /* the other rank need not wait either */
            return false;
        }
    }
    return true;
}

static bool share(bench_mpi_peer *peer, int64_t largest, const int core[BENCH_MPI_RANKS], int *file)
{
    *file = memfd_create("tp_bench_mpi", 0);
    if (*file < 0 || ftruncate(*file, sizeof *peer->shared) != 0)
        return false;
    void *memory = mmap(NULL, sizeof *peer->shared, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
    if (memory == MAP_FAILED)
        return false;
    peer->shared = memory;
    peer->shared->owner = getpid();
    peer->shared->largest = largest;
    for (int rank = 0; rank < BENCH_MPI_RANKS; rank++)
        peer->shared->core[rank] = core[rank];
    atomic_init(&peer->shared->request, 1);
    return true;
}

bool bench_mpi_start(bench_mpi_peer *peer, bench_mpi_library library, int64_t largest, const int core[BENCH_MPI_RANKS],
                     char message[BENCH_MESSAGE])
{
    *peer = (bench_mpi_peer){.library = library, .keeper = {.pipe = -1}, .child = -1};
    const char *name = bench_mpi_names[library];
    char helper[PATH_MAX], path[64];
    int file = -1;
    if (mpirun[library][0] == '\0')
        return bench_say(message,
                         "--peer %s: mpicc.%s and mpirun.%s were not there when this was configured (Debian: %s)", name,
                         name, name, package[library]);
    if (!helper_path(library, helper, sizeof helper))
        return bench_say(message, "--peer %s: tp_peer_%s is neither beside tp_bench nor where it was installed", name,
                         name);
    bool shared = share(peer, largest, core, &file);
    int unwatched = shared ? bench_keeper_start(&peer->keeper) : 0;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), file);
    if (shared && unwatched == 0)
        peer->child = fork();
    if (peer->child == 0)
        become_mpirun(peer, helper, path);
    bool good = peer->child > 0;
    for (int rank = 0; rank < BENCH_MPI_RANKS && good; rank++)
        good = wait_for(peer, rank, 1, START_SECONDS);
    if (!good)
        bench_say(message, "--peer %s: %s did not start two processes: %s", name, mpirun[library],
                  shared && peer->child > 0 ? "they ended, or took too long"
                                            : strerror(unwatched != 0 ? unwatched : errno));
    if (file >= 0)
        close(file);
    if (!good)
        bench_mpi_stop(peer);
    return good;
}

void bench_mpi_ask(bench_mpi_peer *peer, const bench_mpi_sample *sample)
{
    bench_mpi_shared *shared = peer->shared;
    shared->operation = sample->operation;
    shared->kind = sample->kind;
    shared->in_place = sample->in_place;
    shared->count = sample->count;
    shared->repeats = sample->repeats;
    atomic_fetch_add(&shared->request, 1);
    syscall(SYS_futex, &shared->request, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool bench_mpi_wait(bench_mpi_peer *peer, int rank, unsigned request)
{
    return wait_for(peer, rank, request, SAMPLE_SECONDS);
}

void bench_mpi_stop(bench_mpi_peer *peer)
{
    if (peer->shared == NULL)
        return;
    atomic_store(&peer->shared->stop, 1);
    syscall(SYS_futex, &peer->shared->request, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    double deadline = bench_now() + 5;
    const struct timespec pause = {0, 10000000};
    while (peer->child > 0 && waitpid(peer->child, NULL, WNOHANG) == 0) {
        if (bench_now() > deadline)
            kill(peer->child, bench_now() > deadline + 5 ? SIGKILL : SIGTERM);
        nanosleep(&pause, NULL);
    }
    bench_keeper_end(&peer->keeper);
    munmap(peer->shared, sizeof *peer->shared);
    *peer = (bench_mpi_peer){.keeper = {.pipe = -1}, .child = -1};
}
