/* Memory of training: from the second step on the whole process asks the system for nothing; nothing grows over steps;
 * what is destroyed is gone. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/trainer.h>
#include <unistd.h>

#include "support/asked.h"
#include "support/data.h"
#include "support/text.h"

/* ---- the process's allocator, counted ---------------------------------------------------------------------------- */

#ifndef TPT_SANITIZED
Test(memory, the_counter_sees_the_library)
{
    long long before = atomic_load(&tpt_asked);
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 2}, &ctx), TP_OK);
    long long created = atomic_load(&tpt_asked) - before;
    tp_ctx_destroy(ctx);
    cr_assert_gt(created, 3);
    cr_assert_gt(atomic_load(&tpt_asked) - before, created);
}
#endif

/* ---- training ---------------------------------------------------------------------------------------------------- */

static const tp_model_desc gpt2 = {.family = TP_MODEL_GPT2,
                                   .layers = 2,
                                   .hidden = 32,
                                   .heads = 4,
                                   .ffn = 67,
                                   .vocabulary = 256,
                                   .positions = 16,
                                   .dropout = 0.1f};

static const tp_model_desc llama = {.family = TP_MODEL_LLAMA,
                                    .layers = 2,
                                    .hidden = 32,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .ffn = 45,
                                    .vocabulary = 256,
                                    .positions = 16};

static const tp_trainer_desc plan = {.batch = 4,
                                     .sequence = 13,
                                     .microbatch = 2,
                                     .lr = 1e-2f,
                                     .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f, .clip_norm = 1.0f}};

typedef struct memory_case {
    tp_model_desc model;
    const tp_data *data;
    int steps;
    int skip_every; /* an infinity in a gain makes every so many steps bad; 0: none */
    bool evaluate;
    long long asked;        /* after the first step */
    long pages[2];          /* resident, half-way and in the end */
} memory_case;

/* Pages of the process. The kernel counts up to 64 a thread late. */
static long resident_pages(void)
{
    char text[128] = {0};
    long total = 0, resident = 0;
    int descriptor = open("/proc/self/statm", O_RDONLY);
    if (descriptor < 0 || read(descriptor, text, sizeof text - 1) <= 0 ||
        sscanf(text, "%ld %ld", &total, &resident) != 2)
        resident = -1;
    close(descriptor);
    return resident;
}

static tp_status one_step(tp_ctx *ctx, const memory_case *c, tp_trainer *trainer, tp_param *gain, int step)
{
    bool bad = c->skip_every != 0 && step % c->skip_every == 0;
    float *first = gain->value.data, keep = first[0];
    tp_train_report report;
    tp_status status = TP_OK;
    if (bad) {
        first[0] = INFINITY;
        status = tp_param_touch(ctx, gain);
    }
    if (status == TP_OK)
        status = tp_trainer_step(ctx, trainer, &report);
    if (status == TP_OK && report.skipped != bad)
        return TP_ERR_INTERNAL;
    double loss;
    if (status == TP_OK && c->evaluate)
        status = tp_trainer_evaluate(ctx, trainer, step, 3, &loss);
    if (bad) {
        first[0] = keep;
        status = status == TP_OK ? tp_param_touch(ctx, gain) : status;
    }
    return status;
}

/* All ranks meet before each look, so that none of them is still in its first step. */
static tp_status run_steps(tp_ctx *ctx, memory_case *c, tp_model *model, tp_trainer *trainer)
{
    tp_param *gain = tp_model_param(model, "norm.weight");
    tp_status status = TP_OK;
    long long before = 0;
    for (int step = 1; step <= c->steps && status == TP_OK; step++) {
        status = one_step(ctx, c, trainer, gain, step);
        if (status == TP_OK && step == 1) {
            status = tp_barrier(ctx, tp_ctx_world(ctx));
            before = atomic_load(&tpt_asked);
            status = status == TP_OK ? tp_barrier(ctx, tp_ctx_world(ctx)) : status;
        }
        if (tp_ctx_rank(ctx) == 0 && c->pages[0] != 0 && step == c->steps / 2)
            c->pages[0] = resident_pages();
    }
    if (status == TP_OK)
        status = tp_barrier(ctx, tp_ctx_world(ctx));
    if (tp_ctx_rank(ctx) == 0) {
        c->asked = atomic_load(&tpt_asked) - before;
        c->pages[1] = resident_pages();
    }
    return status == TP_OK ? tp_barrier(ctx, tp_ctx_world(ctx)) : status;
}

static tp_status train_main(tp_ctx *ctx, void *arg)
{
    memory_case *c = arg;
    tp_model *model;
    tp_trainer *trainer = NULL;
    tp_status status = tp_model_create(ctx, &c->model, &model);
    if (status != TP_OK)
        return status;
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    status = tp_params_init(ctx, params, count);
    if (status == TP_OK)
        status = tp_trainer_create(ctx, &plan, model, c->data, &trainer);
    if (status == TP_OK)
        status = run_steps(ctx, c, model, trainer);
    tp_trainer_destroy(trainer);
    tp_model_destroy(model);
    return status;
}

static void run_case(memory_case *c, int ranks, int threads, uint64_t delays)
{
    tp_run_options options = {.ranks = ranks, .ctx = {.threads = threads, .lane_delay_seed = delays}};
    cr_assert_eq(tp_run_ranks(&options, train_main, c), TP_OK, "%s", tp_last_message());
}

static void check_quiet(tp_model_desc model, const tp_data *data)
{
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (int threads = 1; threads <= 2; threads++)
            for (int evaluate = 0; evaluate < 2; evaluate++) {
                memory_case c = {.model = model, .data = data, .steps = 5, .evaluate = evaluate != 0};
                c.model.sequence_parallel = true;
                c.model.dtype = ranks == 2 ? TP_DTYPE_BF16 : TP_DTYPE_F32;
                run_case(&c, ranks, threads, 0);
                cr_assert_eq(c.asked, 0,
                             "TP %d, %d threads, evaluation %d: the system was asked %lld times after the first step",
                             ranks, threads, evaluate, c.asked);
            }
}

Test(memory, later_steps_ask_the_system_for_nothing)
{
    tp_data *data = tpt_open_text(411);
    check_quiet(gpt2, data);
    check_quiet(llama, data);
    tp_data_close(data);
}

Test(memory, later_steps_on_delayed_lanes_ask_the_system_for_nothing)
{
    tp_data *data = tpt_open_text(411);
    memory_case c = {.model = gpt2, .data = data, .steps = 4};
    c.model.dtype = TP_DTYPE_F32;
    run_case(&c, 2, 2, 5);
    cr_assert_eq(c.asked, 0, "the system was asked %lld times after the first step", c.asked);
    tp_data_close(data);
}

/* O41: many steps, every third of them skipped, evaluations between: nothing grows. */
Test(memory, many_steps_do_not_grow)
{
#ifdef TPT_SANITIZED
    static const int steps = 30;
#else
    static const int steps = 400;
#endif
    tp_data *data = tpt_open_text(411);
    memory_case c = {.model = llama, .data = data, .steps = steps, .skip_every = 3, .evaluate = true, .pages = {1, 0}};
    c.model.dtype = TP_DTYPE_F32;
    run_case(&c, 2, 1, 0);
#ifndef TPT_SANITIZED
    cr_assert_eq(c.asked, 0);
    cr_assert(c.pages[0] > 0 && c.pages[1] <= c.pages[0] + 2 * 64, "resident pages: %ld half-way, %ld in the end",
              c.pages[0], c.pages[1]);
#endif
    tp_data_close(data);
}

/* ---- cycles ------------------------------------------------------------------------------------------------------ */

static int entries(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;
    cr_assert_not_null(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* Joined threads leave /proc a moment later. */
static bool threads_come_down_to(int expected)
{
    for (int wait = 0; wait < 2000; wait++) {
        if (entries("/proc/self/task") <= expected)
            return true;
        usleep(1000);
    }
    return false;
}

Test(memory, creating_and_destroying_leaves_nothing)
{
#ifdef TPT_SANITIZED
    static const int cycles = 10, warm = 5;
    static const int most_pages = 1 << 20, more_threads = 1; /* sanitizers keep what was freed, and have a thread of
                                                              * their own */
#else
    static const int cycles = 100, warm = 20;
    static const int most_pages = 2 * 64, more_threads = 0; /* stacks and malloc's arenas come and go; two pages a cycle
                                                             * would be more */
#endif
    tp_data *data = tpt_open_text(411);
    int threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
    long pages = 0;
    for (int cycle = 1; cycle <= cycles; cycle++) {
        memory_case c = {.model = cycle % 2 ? gpt2 : llama, .data = data, .steps = 1};
        c.model.dtype = TP_DTYPE_F32;
        c.model.sequence_parallel = true;
        run_case(&c, 2, 2, 0);
        if (cycle == warm)
            pages = resident_pages();
    }
    cr_assert(threads_come_down_to(threads + more_threads), "%d threads at first, %d in the end", threads,
              entries("/proc/self/task"));
    cr_assert_eq(entries("/proc/self/fd"), files);
    cr_assert_leq(resident_pages(), pages + most_pages, "resident pages: %ld after %d cycles, %ld in the end", pages,
                  warm, resident_pages());
    tp_data_close(data);
}
