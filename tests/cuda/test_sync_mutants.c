/* The simulator's mutants: every barrier of the kernels and every wait of a stream for an event is left out, one at a time, and something must notice: a
 * report, a wrong result or a failure. Runs a sample of both within a minute; all of them, with a table of those that nobody noticed, if the environment
 * has TPT_CUDA_ALL_MUTANTS. docs/cuda.md says why each of these is harmless. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda/gpus.h"
#include "cuda/step_scene.h"

enum { SAMPLE_SECONDS = 25, MUTANT_SECONDS = 240, LEAST_PERCENT = 95, MOST_PROGRAMS = 4 };

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

static void judge(const char *what, const tally *t)
{
    printf("%s: %d of %d mutants caught\n", what, t->caught, t->tried);
    cr_assert_gt(t->tried, 0);
    cr_assert_geq(t->caught * 100, t->tried * LEAST_PERCENT, "%s: only %d of %d mutants are caught", what, t->caught, t->tried);
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
    judge("barriers", &t);
}

/* ---- waits for events: steps of a model on several ranks ------------------------------------------------------------------------------------------ */

enum { MOST_NUMBERS = 16384 };

/* One run of the scene: the waits of its first step, and what came out. */
typedef struct wait_run {
    int64_t first, end; /* waits of the first step are those with numbers [first, end) */
    int numbers;
    float number[MOST_NUMBERS]; /* rank 0's gradients */
} wait_run;

/* Two steps' gradients: what the first leaves unordered, the second may meet. No host waits for anything in between. */
static tp_status two_steps(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    wait_run *run = scene->own;
    bool first = tp_ctx_rank(ctx) == 0;
    tp_status status = tp_ctx_synchronize(ctx);
    pthread_barrier_wait(&scene->meeting);
    if (first)
        run->first = tpt_gpus_count().event_waits;
    pthread_barrier_wait(&scene->meeting);
    if (status == TP_OK)
        status = tpt_scene_gradients(ctx, actor);
    pthread_barrier_wait(&scene->meeting);
    if (first)
        run->end = tpt_gpus_count().event_waits;
    pthread_barrier_wait(&scene->meeting);
    if (status == TP_OK)
        status = tpt_scene_gradients(ctx, actor);
    for (int i = 0, at = 0; i < actor->count && status == TP_OK; i++) {
        int64_t elements = tp_param_elements(actor->params[i]);
        float *whole = malloc((size_t)elements * sizeof *whole);
        status = tp_param_gather(ctx, actor->params[i], 1, whole);
        if (first && at + elements <= MOST_NUMBERS) {
            memcpy(run->number + at, whole, (size_t)elements * sizeof *whole);
            run->numbers = at += (int)elements;
        }
        free(whole);
    }
    return status;
}

static const struct {
    int ranks, devices;
    tp_overlap overlap;
} works[] = {{2, 2, TP_OVERLAP_NONE}, {4, 2, TP_OVERLAP_NONE}, {2, 1, TP_OVERLAP_RING},   {2, 2, TP_OVERLAP_PIPELINE},
             {2, 2, TP_OVERLAP_PULL}, {4, 4, TP_OVERLAP_PULL}, {2, 2, TP_OVERLAP_DIRECT}, {2, 2, TP_OVERLAP_BULK}};

static tp_status run_work(size_t work, int skip_wait, wait_run *run)
{
    gpusim_options options = tpt_gpus_schedule((unsigned)skip_wait);
    tpt_scene scene = {.ranks = works[work].ranks,
                       .devices = works[work].devices,
                       .overlap = works[work].overlap,
                       .dtype = TP_DTYPE_F32,
                       .act = two_steps,
                       .own = run,
                       .timeout_ms = 60000};
    options.skip_wait = skip_wait;
    tpt_gpus_configure(&options);
    return tpt_scene_run(&scene);
}

static bool wait_is_missed(size_t work, int64_t number, const wait_run *right)
{
    static wait_run run;
    const char *report;
    tp_status status = run_work(work, (int)number + 1, &run);
    return status != TP_OK || tpt_gpus_reports(&report) > 0 || run.numbers != right->numbers ||
           memcmp(run.number, right->number, (size_t)run.numbers * sizeof(float)) != 0;
}

static void try_waits(size_t work, double until, tally *t)
{
    static wait_run right;
    cr_assert_eq(run_work(work, 0, &right), TP_OK, "%s", tp_last_message());
    tpt_gpus_clean(tp_overlap_name(works[work].overlap));
    int count = (int)(right.end - right.first), survivors = 0, tried = 0, *order = order_of(count);
    for (int i = 0; i < count && (everything() || seconds() < until); i++, tried++)
        survivors += !wait_is_missed(work, right.first + order[i], &right);
    t->tried += tried;
    t->caught += tried - survivors;
    printf("%s, %d ranks on %d devices: %d of %d waits tried, %d survive\n", tp_overlap_name(works[work].overlap), works[work].ranks,
           works[work].devices, tried, count, survivors);
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
    for (size_t work = 0; work < count; work++)
        try_waits(work, begin + SAMPLE_SECONDS * (double)(work + 1) / (double)count, &t);
    tpt_gpus_quiet(false);
    judge("waits", &t);
}
