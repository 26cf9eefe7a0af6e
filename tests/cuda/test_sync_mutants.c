/* The simulator's mutants: every barrier of the kernels and every wait of a stream for an event is left out, one at a time, and something must notice: a
 * report, a wrong result or a failure. Runs a sample of both within a minute; all of them, with a table of those that nobody noticed, if the environment
 * has TPT_CUDA_ALL_MUTANTS. docs/cuda.md says why each of these is harmless. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <tp/tp.h>
#include <unistd.h>

#include "core/context.h"
#include "cuda/gpus.h"
#include "support/data.h"

enum { SAMPLE_SECONDS = 25, MUTANT_SECONDS = 240, LEAST_SAMPLED = 50, /* percent: see docs/cuda.md */
       MOST_PROGRAMS = 4 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool everything(void)
{
    return getenv("TPT_CUDA_ALL_MUTANTS") != NULL;
}

/* Numbers 0 to count - 1 in an order that TPT_CUDA_MUTANT_SEED gives; in their own order for all of them. */
static int *order_of(int count)
{
    int *order = malloc(((size_t)count + 1) * sizeof *order);
    const char *text = getenv("TPT_CUDA_MUTANT_SEED");
    uint64_t state = text != NULL ? strtoull(text, NULL, 0) + 1 : 1;
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0 && !everything(); i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int other = (int)((state >> 33) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    return order;
}

typedef struct tally {
    int tried, caught;
} tally;

/* A small sample may have one survivor. */
static void judge(const char *what, const tally *t, int least_percent)
{
    printf("%s: %d of %d mutants caught\n", what, t->caught, t->tried);
    cr_assert_gt(t->tried, 0);
    cr_assert((t->caught + !everything()) * 100 >= t->tried * least_percent, "%s: only %d of %d mutants are caught", what, t->caught, t->tried);
}

/* ---- barriers: the programs that test a kernel, each in a process of its own ---------------------------------------------------------------------- */

/* Programs by what a kernel's name contains; the first that fits. */
static const struct {
    const char *part;
    const char *program[MOST_PROGRAMS];
} testers[] = {
    {"attention", {"test_cuda_attention", "test_cuda_layers_attention"}},
    {"norm", {"test_cuda_norm", "test_cuda_layers"}},
    {"rope", {"test_cuda_rope", "test_cuda_layers_attention"}},
    {"square", {"test_cuda_square_sum", "test_cuda_training"}},
    {"embedding", {"test_cuda_embedding", "test_cuda_model"}},
    {"", {"test_cuda_gemm", "test_cuda_gemm_bits", "test_cuda_xent", "test_cuda_embedding"}},
};

static const char *const *testers_of(const gpusim_site *site)
{
    size_t i = 0;
    while (strstr(site->kernel, testers[i].part) == NULL && (site->file == NULL || strstr(site->file, testers[i].part) == NULL))
        i++;
    return testers[i].program;
}

/* The program beside this one. */
static void run_program(const char *name)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    char *slash = strrchr(path, '/');
    int nothing = open("/dev/null", O_WRONLY);
    if (slash == NULL || nothing < 0)
        _exit(0);
    snprintf(slash + 1, sizeof path - (size_t)(slash + 1 - path), "%s", name);
    unsetenv("BXFI_MAP"); /* else it takes itself for a worker of this program's runner */
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    alarm(MUTANT_SECONDS);
    execl(path, name, "--jobs", "1", "--fail-fast", (char *)NULL);
    _exit(0); /* a program that is not there catches nothing */
}

static bool program_fails(const char *name, int skip_barrier)
{
    char number[16];
    snprintf(number, sizeof number, "%d", skip_barrier);
    setenv("GPUSIM_SKIP_BARRIER", number, 1);
    pid_t child = fork();
    if (child == 0)
        run_program(name);
    unsetenv("GPUSIM_SKIP_BARRIER");
    int status = 0;
    cr_assert_gt(child, 0);
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* A program must pass with all barriers in place, or its failures say nothing. Looked at once a program. */
static void check_passes(const char *name)
{
    static const char *known[16];
    int i = 0;
    while (known[i] != NULL && strcmp(known[i], name) != 0)
        i++;
    if (known[i] != NULL)
        return;
    known[i] = name;
    cr_assert(!program_fails(name, INT_MAX), "%s fails without a mutant", name);
}

static bool barrier_is_missed(int number)
{
    gpusim_site site = tpt_gpus_barrier(number);
    const char *const *program = testers_of(&site);
    for (int i = 0; i < MOST_PROGRAMS && program[i] != NULL; i++) {
        check_passes(program[i]);
        if (program_fails(program[i], number + 1))
            return true;
    }
    printf("survives: %s in %s, %s:%d\n", site.what, site.kernel, site.file != NULL ? site.file : "?", site.line);
    return false;
}

Test(cuda_sync_mutants, barriers, .timeout = 14400)
{
    double begin = seconds();
    int count = tpt_gpus_barriers(), *order;
    tally t = {0, 0};
    if (count == 0)
        cr_skip_test("no simulator");
    order = order_of(count);
    for (int i = 0; i < count && (everything() || seconds() < begin + SAMPLE_SECONDS); i++) {
        t.tried++;
        t.caught += barrier_is_missed(order[i]);
        fflush(stdout);
    }
    free(order);
    judge("barriers", &t, everything() ? 95 : LEAST_SAMPLED);
}

/* ---- waits for events: a layer on several ranks ---------------------------------------------------------------------------------------------------- */

enum { HIDDEN = 16, FFN = 19, TOKENS = 17, NUMBERS = 3 * FFN * HIDDEN };

typedef struct work {
    int ranks, devices;
    tp_overlap overlap;
    bool sequence_parallel;
} work;

/* One run: the waits of its first pass, and what came out. */
typedef struct wait_run {
    const work *of;
    pthread_barrier_t meeting;
    int64_t first, end; /* waits of the first pass are those with numbers [first, end) */
    float number[NUMBERS]; /* gradients of the weights */
} wait_run;

/* A rank's feed-forward layer. */
typedef struct actor {
    tp_mlp *layer;
    tp_param *params[4];
    tp_tensor x, y, dy, dx, x_kept, dy_kept, junk; /* this rank's tokens */
    tp_tensor whole, sum, all_junk;                      /* all tokens */
    tp_mlp_saved saved;
} actor;

enum { TENSORS = 10, LOCAL = 7, GIVEN = 5 };

static void list_tensors(actor *a, tp_tensor *out[TENSORS])
{
    tp_tensor *all[TENSORS] = {&a->x_kept, &a->dy_kept, &a->junk, &a->x, &a->dy,
                               &a->y,      &a->dx,      &a->whole, &a->sum, &a->all_junk};
    memcpy(out, all, sizeof all);
}

static const tp_pass pass = {.tokens = TOKENS, .step = 1};

static tp_status new_tensor(tp_ctx *ctx, int64_t rows, uint64_t seed, tp_tensor *out)
{
    *out = tp_tensor_2d(NULL, TP_DTYPE_F32, rows, HIDDEN);
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, tp_tensor_bytes(*out), &out->data);
    if (status != TP_OK || seed == 0)
        return status;
    float *values = tpt_new_normal(TP_DTYPE_F32, rows * HIDDEN, seed, 1);
    status = tp_ctx_upload(ctx, out->data, values, tp_tensor_bytes(*out));
    free(values);
    return status;
}

static tp_status make_actor(tp_ctx *ctx, const work *of, actor *a)
{
    const tp_mlp_desc desc = {.name = "mlp",
                              .hidden = HIDDEN,
                              .ffn = FFN,
                              .activation = TP_ACTIVATION_SWIGLU,
                              .dtype = TP_DTYPE_F32,
                              .bias = true,
                              .sequence_parallel = of->sequence_parallel,
                              .overlap = of->overlap,
                              .chunks = 2,
                              .init_std = 0.3f};
    tp_status status = tp_mlp_create(ctx, &desc, &a->layer);
    if (status != TP_OK)
        return status;
    tp_range rows = tp_pass_rows(ctx, &pass, of->sequence_parallel);
    tp_tensor *tensors[TENSORS];
    list_tensors(a, tensors);
    status = tp_params_init(ctx, a->params, tp_mlp_params(a->layer, a->params, 4));
    for (int i = 0; i < TENSORS && status == TP_OK; i++)
        status = new_tensor(ctx, i < LOCAL ? rows.end - rows.begin : TOKENS, i < GIVEN || i >= LOCAL ? (uint64_t)(i + 1) : 0, tensors[i]);
    a->saved.bytes = tp_mlp_saved_bytes(a->layer, &pass);
    return status == TP_OK ? tp_ctx_allocate(ctx, TP_MEMORY_SAVED, a->saved.bytes, &a->saved.memory) : status;
}

static void free_actor(tp_ctx *ctx, actor *a, void *saved)
{
    tp_tensor *tensors[TENSORS];
    list_tensors(a, tensors);
    tp_ctx_synchronize(ctx);
    for (int i = 0; i < TENSORS; i++)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, tensors[i]->data, tp_tensor_bytes(*tensors[i]));
    tp_ctx_release(ctx, TP_MEMORY_SAVED, saved, a->saved.bytes);
    tp_mlp_destroy(a->layer);
}

static tp_status overwrite(tp_ctx *ctx, tp_tensor to, tp_tensor from)
{
    return ctx->backend->copy(ctx->compute, to.data, from.data, tp_tensor_bytes(to), TPI_COPY_WITHIN);
}

/* What peers read was written just before, and is overwritten just after: else most waits would be of no use here. */
static tp_status go_through(tp_ctx *ctx, actor *a)
{
    const tp_io forward = {.in = a->x, .out = a->y}, backward = {.in = a->dy, .out = a->dx};
    for (int saves = 0; saves < 2; saves++) {
        TPI_TRY(overwrite(ctx, a->x, a->x_kept));
        TPI_TRY(tp_mlp_forward(ctx, a->layer, &pass, &forward, saves ? &a->saved : NULL));
        TPI_TRY(overwrite(ctx, a->y, a->junk));
        TPI_TRY(saves ? TP_OK : overwrite(ctx, a->x, a->junk));
    }
    TPI_TRY(overwrite(ctx, a->dy, a->dy_kept));
    TPI_TRY(tp_mlp_backward(ctx, a->layer, &pass, &backward, &a->saved));
    TPI_TRY(overwrite(ctx, a->dx, a->junk));
    TPI_TRY(overwrite(ctx, a->dy, a->junk));
    return overwrite(ctx, a->x, a->junk);
}

/* Collectives by themselves, each between two writes of what it reads. In layers another collective follows, whose first waits would do for the last
 * waits of this one. */
static tp_status go_through_collectives(tp_ctx *ctx, actor *a)
{
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    TPI_TRY(overwrite(ctx, a->x, a->x_kept));
    TPI_TRY(tp_all_gather(ctx, group, a->x, a->whole, NULL));
    TPI_TRY(overwrite(ctx, a->x, a->junk));
    TPI_TRY(overwrite(ctx, a->whole, a->all_junk));
    TPI_TRY(tp_reduce_scatter(ctx, group, a->whole, a->y, NULL, NULL));
    TPI_TRY(overwrite(ctx, a->whole, a->all_junk));
    TPI_TRY(tp_all_reduce(ctx, group, a->whole, a->sum, &(tp_reduce_desc){.algorithm = TP_ALL_REDUCE_TWO_SHOT}));
    TPI_TRY(overwrite(ctx, a->whole, a->all_junk));
    TPI_TRY(overwrite(ctx, a->sum, a->all_junk));
    TPI_TRY(tp_all_reduce(ctx, group, a->whole, a->sum, &(tp_reduce_desc){.algorithm = TP_ALL_REDUCE_ONE_SHOT}));
    return overwrite(ctx, a->whole, a->all_junk);
}

static void note(tp_ctx *ctx, wait_run *run, int64_t *waits)
{
    pthread_barrier_wait(&run->meeting);
    if (tp_ctx_rank(ctx) == 0)
        *waits = tpt_gpus_count().event_waits;
    pthread_barrier_wait(&run->meeting);
}

/* Twice: what the first pass leaves unordered, the second may meet. No host waits for anything in between. */
static tp_status pass_twice(tp_ctx *ctx, wait_run *run, actor *a)
{
    tp_status (*go)(tp_ctx *, actor *) = run->of->overlap == TP_OVERLAP_NONE ? go_through_collectives : go_through;
    tp_status status = tp_ctx_synchronize(ctx);
    note(ctx, run, &run->first);
    if (status == TP_OK)
        status = go(ctx, a);
    note(ctx, run, &run->end);
    if (status == TP_OK)
        status = go(ctx, a);
    float whole[NUMBERS] = {0};
    if (status == TP_OK)
        status = tp_param_gather(ctx, a->params[0], 1, whole);
    if (status == TP_OK)
        status = tp_param_gather(ctx, a->params[2], 1, whole + 2 * FFN * HIDDEN);
    if (tp_ctx_rank(ctx) == 0)
        memcpy(run->number, whole, sizeof whole);
    return status;
}

static tp_status run_rank(tp_ctx *ctx, void *arg)
{
    wait_run *run = arg;
    actor a = {.layer = NULL};
    tp_status status = make_actor(ctx, run->of, &a);
    void *saved = a.saved.memory;
    if (status == TP_OK)
        status = pass_twice(ctx, run, &a);
    free_actor(ctx, &a, saved);
    return status;
}

static const work works[] = {
    {2, 2, TP_OVERLAP_NONE, true},  {4, 2, TP_OVERLAP_NONE, true}, {2, 1, TP_OVERLAP_RING, true},   {4, 4, TP_OVERLAP_RING, false},
    {2, 2, TP_OVERLAP_PIPELINE, true}, {2, 2, TP_OVERLAP_PULL, true}, {4, 2, TP_OVERLAP_PULL, false}, {2, 2, TP_OVERLAP_DIRECT, true},
    {4, 4, TP_OVERLAP_DIRECT, false}, {2, 2, TP_OVERLAP_BULK, true}, {4, 2, TP_OVERLAP_BULK, false}};

static tp_status run_work(const work *of, int skip_wait, wait_run *run)
{
    gpusim_options options = tpt_gpus_schedule((unsigned)skip_wait);
    const tp_run_options run_options = {.ranks = of->ranks,
                                        .devices = of->devices,
                                        .ctx = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .threads = 1, .timeout_ms = 60000}};
    options.skip_wait = skip_wait;
    tpt_gpus_configure(&options);
    *run = (wait_run){.of = of};
    pthread_barrier_init(&run->meeting, NULL, (unsigned)of->ranks);
    tp_status status = tp_run_ranks(&run_options, run_rank, run);
    pthread_barrier_destroy(&run->meeting);
    return status;
}

static bool wait_is_missed(const work *of, int64_t number, const wait_run *right)
{
    wait_run run;
    const char *report;
    tp_status status = run_work(of, (int)number + 1, &run);
    return status != TP_OK || tpt_gpus_reports(&report) > 0 || memcmp(run.number, right->number, sizeof run.number) != 0;
}

static void try_waits(const work *of, double until, tally *t)
{
    wait_run right;
    cr_assert_eq(run_work(of, 0, &right), TP_OK, "%s", tp_last_message());
    tpt_gpus_clean(tp_overlap_name(of->overlap));
    int count = (int)(right.end - right.first), survivors = 0, tried = 0, *order = order_of(count);
    for (int i = 0; i < count && (everything() || seconds() < until); i++, tried++) {
        bool missed = wait_is_missed(of, right.first + order[i], &right);
        survivors += !missed;
        if (!missed && everything())
            printf("survives: wait %d\n", order[i]);
    }
    t->tried += tried;
    t->caught += tried - survivors;
    printf("%s, %d ranks on %d devices: %d of %d waits tried, %d survive\n", tp_overlap_name(of->overlap), of->ranks, of->devices, tried, count,
           survivors);
    fflush(stdout);
    free(order);
}

Test(cuda_sync_mutants, waits, .timeout = 14400)
{
    const size_t count = sizeof works / sizeof works[0];
    double begin = seconds();
    tally t = {0, 0};
    if (!tpt_gpus_configure(&(gpusim_options){.devices = 4}))
        cr_skip_test("no simulator");
    tpt_gpus_quiet(true);
    for (size_t i = 0; i < count; i++)
        try_waits(&works[i], begin + SAMPLE_SECONDS * (double)(i + 1) / (double)count, &t);
    tpt_gpus_quiet(false);
    judge("waits", &t, LEAST_SAMPLED);
}
