/* Simulated GPUs for tests: what a test asks of the simulator. Plain C. */
#ifndef GPUSIM_H
#define GPUSIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* When queued work runs. EAGER: as soon as it may. LAZY: only what a host wait needs, everything else as late as
 * possible. RANDOM: seeded. */
typedef enum gpusim_schedule { GPUSIM_EAGER = 0, GPUSIM_LAZY, GPUSIM_RANDOM } gpusim_schedule;
typedef enum gpusim_order { GPUSIM_UP = 0, GPUSIM_DOWN, GPUSIM_SHUFFLED } gpusim_order; /* of blocks and warps */

typedef enum gpusim_report_kind {
    GPUSIM_RACE_SHARED = 0, /* two threads of a block, no barrier between */
    GPUSIM_RACE_GLOBAL,     /* two threads or blocks of one kernel */
    GPUSIM_RACE_STREAM,     /* two operations of different streams or devices without an event or wait between */
    GPUSIM_OUT_OF_BOUNDS,
    GPUSIM_USE_AFTER_FREE,
    GPUSIM_UNINITIALISED,
    GPUSIM_PENDING_COPY, /* before the wait of a cp.async its data is read, or its target or source written */
    GPUSIM_DEADLOCK,
    GPUSIM_HOST_ACCESS, /* host code read or wrote device memory, or pinned memory that the GPU may still write */
    GPUSIM_WRONG_DEVICE,
    GPUSIM_API, /* a call that CUDA forbids or leaves undefined */
    GPUSIM_BLAS,
    GPUSIM_NCCL,
    GPUSIM_UNSUPPORTED, /* the simulator itself can't do it: an opcode, an epilogue */
    GPUSIM_LEAK,
    GPUSIM_TRAP, /* a kernel stopped itself: __trap(), assert() */
    GPUSIM_REPORT_KINDS
} gpusim_report_kind;

typedef struct gpusim_options {
    int devices;            /* 1 to 16; 0: 4 */
    int compute_capability; /* 0: 80 */
    gpusim_schedule schedule;
    gpusim_order order;
    uint64_t seed;
    bool no_checks;    /* run without the monitor */
    int skip_barrier;  /* mutation: 1 + number of the barrier site that does nothing; 0: none */
    int skip_wait;     /* mutation: 1 + number of the cudaStreamWaitEvent call (counted since gpusim_configure) that
                        * does nothing; 0: none */
    int skip_thread;   /* whose calls skip_wait counts: a number given to gpusim_thread(); 0: those of all threads
                        * together */
    size_t device_bytes; /* memory of each device; 0: 4 GiB */
    int multiprocessors; /* of each device; 0: 4. A kernel starts where those that run leave room */
} gpusim_options;

/* Before the first CUDA call, or between runs with nothing in flight: sets the options and clears reports and counts.
 * The environment variables GPUSIM_DEVICES, GPUSIM_CC, GPUSIM_SCHEDULE (eager, lazy, random), GPUSIM_ORDER (up, down,
 * random), GPUSIM_SEED and GPUSIM_CHECKS (0) give the defaults, for programs that don't know the simulator. */
void gpusim_configure(const gpusim_options *options);

/* Reports since then: of one kind, or of all (kind < 0). The text of report i, or NULL. Reports also go to stderr
 * unless quiet. */
int gpusim_reports(int kind);
const char *gpusim_report_text(int index);
void gpusim_quiet(bool quiet);
void gpusim_clear_reports(void);

/* Reports what is still allocated or queued; the number of these. Called by itself when the process ends. */
int gpusim_report_leaks(void);

/* What a step did, since gpusim_configure or gpusim_clear_counts. */
typedef struct gpusim_counts {
    int64_t kernels, copies, allocations, host_synchronisations, event_waits, library_calls, collectives;
    int64_t heuristics;   /* cuBLASLt was asked for an algorithm */
    int64_t host_queries; /* of streams and events: a host that polls waits too */
    int64_t instructions; /* of warps */
} gpusim_counts;
gpusim_counts gpusim_count(void);
void gpusim_clear_counts(void);

/* Gives the calling host thread a number, 1 to 64, by which skip_thread and gpusim_thread_waits know it: threads issue
 * in no fixed order, but the n-th wait of one of them is the same in every run. */
void gpusim_thread(int number);
int64_t gpusim_thread_waits(int number); /* its calls of cudaStreamWaitEvent since gpusim_configure */
/* Whether its n-th one, from 1 on, ordered anything: false if its stream came after all that the event stands for
 * anyway. Then skipping it changes nothing. */
bool gpusim_wait_orders(int number, int64_t n);

/* Plants a failure of NCCL, for one collective, send, receive, ncclMemAlloc, ncclCommWindowRegister or
 * ncclGetPeerDevicePointer: the n-th of all these (1: the first) that the rank on this device gives from now on; n = 0:
 * none any more. AT_CALL: the call fails. LATER: it succeeds, but never ends, and from then on ncclCommGetAsyncError
 * says ncclRemoteError; calls that end when they return fail at once. gpusim_configure takes it back. */
typedef enum gpusim_nccl_failure { GPUSIM_NCCL_AT_CALL, GPUSIM_NCCL_LATER } gpusim_nccl_failure;
void gpusim_fail_nccl(int device, int n, gpusim_nccl_failure how);

/* Plants a failure of cuBLASLt, on all devices: of the n-th (1: the first) question to its heuristic from now on, which
 * finds nothing then, or the n-th multiplication, which returns CUBLAS_STATUS_EXECUTION_FAILED; n = 0: none any more; n
 * < 0: all. gpusim_configure takes it back. */
typedef enum gpusim_blas_failure { GPUSIM_BLAS_HEURISTIC = 0, GPUSIM_BLAS_MATMUL } gpusim_blas_failure;
void gpusim_fail_blas(int n, gpusim_blas_failure what);

/* Which NCCL is simulated: its version as ncclGetVersion tells it (0: 2.30.7), and whether there is symmetric memory,
 * which needs devices that reach each other. Calls that the version lacks are reported. gpusim_configure takes it back:
 * that version, with symmetric memory. */
void gpusim_nccl(int version, bool symmetric);

/* Barrier sites of loaded kernels, for mutation. */
typedef struct gpusim_site {
    const char *kernel, *what, *file;
    int line;
    uint64_t executed;
} gpusim_site;
int gpusim_barrier_sites(void);
gpusim_site gpusim_barrier_site(int index);

#ifdef __cplusplus
}
#endif
#endif
