/* The threads of a rank: every part once, workers in range, memory of each its own. */
#include <criterion/criterion.h>
#include <string.h>

#include "core/context.h"
#include "core/stream.h"
#include "cpu/cpu.h"

enum { PARTS = 1000 };

typedef struct visit {
    tp_ctx *ctx;
    int workers;
    atomic_int count[PARTS];
    atomic_int wrong;
} visit;

static void visit_part(void *argument, int64_t part, int worker)
{
    visit *self = argument;
    if (part < 0 || part >= PARTS || worker < 0 || worker >= self->workers)
        atomic_store(&self->wrong, 1);
    else
        atomic_fetch_add(&self->count[part], 1);
}

static tp_ctx *create(int threads, uint64_t delay_seed)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = threads, .lane_delay_seed = delay_seed}, &ctx), TP_OK);
    return ctx;
}

Test(pool, every_part_runs_once)
{
    static visit self;
    for (int threads = 1; threads <= 5; threads++) {
        tp_ctx *ctx = create(threads, 0);
        cr_assert_eq(tpi_cpu_workers(ctx), threads);
        for (int64_t parts = 0; parts <= PARTS; parts = parts * 3 + 1) {
            memset(&self, 0, sizeof self);
            self.workers = threads;
            tpi_cpu_parallel(ctx, parts, visit_part, &self);
            cr_assert_eq(atomic_load(&self.wrong), 0);
            for (int64_t part = 0; part < PARTS; part++)
                cr_assert_eq(atomic_load(&self.count[part]), part < parts ? 1 : 0);
        }
        tpi_cpu_parallel(ctx, -3, visit_part, &self);
        tp_ctx_destroy(ctx);
    }
}

static void add_part(void *argument, int64_t part, int worker)
{
    (void)worker;
    atomic_fetch_add((atomic_int *)argument, (int)part);
}

Test(pool, many_short_calls)
{
    tp_ctx *ctx = create(3, 0);
    for (int round = 0; round < 5000; round++) {
        atomic_int sum = 0;
        tpi_cpu_parallel(ctx, 4, add_part, &sum);
        cr_assert_eq(atomic_load(&sum), 6);
    }
    tp_ctx_destroy(ctx);
}

typedef struct scribble {
    tp_ctx *ctx;
    size_t bytes;
    atomic_int wrong;
} scribble;

/* Fills the worker's memory and finds it as it left it. */
static void scribble_part(void *argument, int64_t part, int worker)
{
    scribble *self = argument;
    unsigned char *memory = tpi_cpu_workspace(self->ctx, worker);
    if ((uintptr_t)memory % 64 != 0)
        atomic_store(&self->wrong, 1);
    memset(memory, (int)(part & 0xff), self->bytes);
    for (size_t i = 0; i < self->bytes; i++) {
        if (memory[i] != (part & 0xff))
            atomic_store(&self->wrong, 1);
    }
}

static tp_status scribble_task(tp_ctx *ctx, const void *args)
{
    scribble *self = *(scribble *const *)args;
    TPI_TRY(tpi_cpu_reserve(ctx, self->bytes));
    tpi_cpu_parallel(ctx, 40, scribble_part, self);
    return TP_OK;
}

Test(pool, lanes_and_workers_have_memory_of_their_own)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        tp_ctx *ctx = create(3, seed);
        tpi_stream *lane;
        cr_assert_eq(ctx->backend->stream_create(ctx, "comm", false, &lane), TP_OK);
        scribble ofs[2] = {{ctx, 5000, 0}, {ctx, 7000, 0}}, *pointers[2] = {&ofs[0], &ofs[1]};
        for (int round = 0; round < 20; round++) {
            cr_assert_eq(ctx->backend->run(lane, scribble_task, &pointers[0], sizeof(scribble *)), TP_OK);
            cr_assert_eq(ctx->backend->run(ctx->compute, scribble_task, &pointers[1], sizeof(scribble *)), TP_OK);
        }
        cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
        cr_assert_eq(atomic_load(&ofs[0].wrong) + atomic_load(&ofs[1].wrong), 0);
        ctx->backend->stream_destroy(lane);
        tp_ctx_destroy(ctx);
    }
}

Test(pool, workspaces_grow_and_stay)
{
    tp_ctx *ctx = create(2, 0);
    cr_assert_eq(tpi_cpu_reserve(ctx, 1000), TP_OK);
    void *memory = tpi_cpu_workspace(ctx, 1);
    cr_assert_eq(tpi_cpu_reserve(ctx, 500), TP_OK);
    cr_assert_eq(tpi_cpu_workspace(ctx, 1), memory);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_SCRATCH).bytes, 2000u);
    cr_assert_eq(tpi_cpu_reserve(ctx, 3000), TP_OK);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_SCRATCH).bytes, 6000u);
    tp_ctx_destroy(ctx);
}
