/* A context on a simulated GPU: what it says of itself, memory, streams, events, host tasks, failures, dry runs. Under
 * all schedules, without reports. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <tp/tp.h>

#include "core/context.h"
#include "core/stream.h"
#include "cuda/simulator.h"

static const gpusim_options schedules[] = {{.schedule = GPUSIM_EAGER},
                                           {.schedule = GPUSIM_LAZY},
                                           {.schedule = GPUSIM_RANDOM, .seed = 1},
                                           {.schedule = GPUSIM_RANDOM, .seed = 2}};

static tp_ctx *create(tp_ctx_desc desc)
{
    tp_ctx *ctx = NULL;
    desc.device = TP_DEVICE_CUDA;
    desc.plugin = TPT_CUDA_PLUGIN;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    return ctx;
}

static void end(tp_ctx *ctx)
{
    char text[512];
    tp_ctx_destroy(ctx);
    cr_assert_eq(tpt_simulator_count(text, sizeof text), 0, "%s", text);
}

Test(cuda_backend, devices_are_described)
{
    tp_device_info info;
    bool simulated = tpt_simulator_configure(&(gpusim_options){.devices = 3});
    cr_assert_eq(tp_device_describe(TP_DEVICE_CUDA, simulated ? 2 : 0, TPT_CUDA_PLUGIN, &info), TP_OK, "%s",
                 tp_last_message());
    cr_assert(info.usable);
    cr_assert_eq(info.simulated, simulated);
    cr_assert_eq(strncmp(info.name, "gpusim", 6) == 0, simulated, "%s", info.name);
    cr_assert_geq(info.major, 8);
    cr_assert_gt(info.memory_bytes, 0);
    if (simulated)
        cr_assert_eq(info.count, 3);
    for (int i = 0, count = info.count; i < 2; i++) {
        int index = i ? count : -1;
        tp_ctx *ctx;
        cr_assert_eq(tp_device_describe(TP_DEVICE_CUDA, index, TPT_CUDA_PLUGIN, &info), TP_ERR_BACKEND);
        cr_assert(strstr(info.reason, "no such device"), "%s", info.reason);
        cr_assert_eq(
            tp_ctx_create(&(tp_ctx_desc){.device = TP_DEVICE_CUDA, .device_index = index, .plugin = TPT_CUDA_PLUGIN},
                          &ctx),
            TP_ERR_BACKEND);
    }
}

Test(cuda_backend, every_slot_is_filled)
{
    tp_ctx *ctx = create((tp_ctx_desc){0});
    void *const *slot = (void *const *)(const void *)ctx->backend;
    for (size_t i = 0; i < offsetof(tpi_backend, behind) / sizeof *slot; i++)
        cr_assert_not_null(slot[i], "slot %zu", i);
    cr_assert(ctx->backend->behind && !ctx->backend->host_memory);
    end(ctx);
}

/* More than all staging pieces hold together, in sizes around a piece's. */
Test(cuda_backend, memory_goes_up_and_down)
{
    static const size_t sizes[] = {1, 4, 65535, 65536, 65537, 1100003};
    for (size_t s = 0; s < sizeof schedules / sizeof *schedules; s++) {
        tpt_simulator_configure(&schedules[s]);
        tp_ctx *ctx = create((tp_ctx_desc){0});
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            unsigned char *host = malloc(sizes[i]);
            void *memory;
            for (size_t b = 0; b < sizes[i]; b++)
                host[b] = (unsigned char)(b * 31 + i);
            cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, sizes[i], &memory), TP_OK);
            cr_assert_eq(tp_ctx_upload(ctx, memory, host, sizes[i]), TP_OK);
            memset(host, 0, sizes[i]); /* ours again */
            cr_assert_eq(tp_ctx_download(ctx, host, memory, sizes[i]), TP_OK);
            for (size_t b = 0; b < sizes[i]; b++)
                cr_assert_eq(host[b], (unsigned char)(b * 31 + i));
            tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, sizes[i]);
            free(host);
        }
        end(ctx);
    }
}

static tpi_map_args doubled(float *to, const float *from, int64_t count)
{
    return (tpi_map_args){.rows = 1,
                          .cols = count,
                          .in = from,
                          .in_dtype = TP_DTYPE_F32,
                          .in_stride = count,
                          .out = to,
                          .out_dtype = TP_DTYPE_F32,
                          .out_stride = count,
                          .scale = 2};
}

/* A value goes through two lanes in turn, ordered by events alone, and through a host task. */
typedef struct relay {
    float *shared;
    int64_t count;
} relay;

static tp_status add_one(tp_ctx *ctx, const void *pointer)
{
    const relay *r = pointer;
    (void)ctx;
    for (int64_t i = 0; i < r->count; i++)
        r->shared[i] += 1;
    return TP_OK;
}

static void pass_through_lanes(tp_ctx *ctx)
{
    enum { COUNT = 33, ROUNDS = 20 };
    const tpi_backend *backend = ctx->backend;
    tpi_stream *lane;
    tpi_event *there, *back;
    void *memory;
    float host[COUNT];
    cr_assert_eq(backend->stream_create(ctx, "lane", false, &lane), TP_OK);
    cr_assert_eq(backend->event_create(ctx, &there), TP_OK);
    cr_assert_eq(backend->event_create(ctx, &back), TP_OK);
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 2 * COUNT * sizeof(float), &memory), TP_OK);
    const relay r = {backend->allocate_shared(ctx, COUNT * sizeof(float)), COUNT};
    float *a = memory, *b = a + COUNT;
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)i;
    cr_assert_eq(tp_ctx_upload(ctx, a, host, sizeof host), TP_OK);
    for (int round = 0; round < ROUNDS; round++) {
        tpi_map_args half = doubled(a, b, COUNT), twice = doubled(b, a, COUNT);
        half.scale = 0.5f;
        cr_assert_eq(backend->event_record(there, ctx->compute), TP_OK);
        cr_assert_eq(backend->event_wait(there, lane), TP_OK);
        cr_assert_eq(tpi_map(lane, &twice), TP_OK);
        cr_assert_eq(backend->event_record(back, lane), TP_OK);
        cr_assert_eq(backend->event_wait(back, ctx->compute), TP_OK);
        cr_assert_eq(tpi_map(ctx->compute, &half), TP_OK);
        cr_assert_eq(backend->copy(ctx->compute, r.shared, a, sizeof host, TPI_COPY_DOWN), TP_OK);
        cr_assert_eq(backend->run(ctx->compute, add_one, &r, sizeof r), TP_OK);
        cr_assert_eq(backend->copy(ctx->compute, a, r.shared, sizeof host, TPI_COPY_SHARED), TP_OK);
    }
    cr_assert_eq(backend->event_record(there, ctx->compute), TP_OK);
    cr_assert_eq(backend->event_synchronize(ctx, there), TP_OK);
    cr_assert_eq(tp_ctx_download(ctx, host, a, sizeof host), TP_OK);
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(host[i], (float)(i + ROUNDS));
    backend->release_shared(ctx, r.shared, COUNT * sizeof(float));
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, 2 * COUNT * sizeof(float));
    backend->event_destroy(there);
    backend->event_destroy(back);
    backend->stream_destroy(lane);
}

Test(cuda_backend, streams_are_ordered_by_events)
{
    for (size_t s = 0; s < sizeof schedules / sizeof *schedules; s++)
        for (int synchronous = 0; synchronous < 2; synchronous++) {
            tpt_simulator_configure(&schedules[s]);
            tp_ctx *ctx = create((tp_ctx_desc){.synchronous = synchronous != 0});
            pass_through_lanes(ctx);
            end(ctx);
        }
}

static tp_status fail(tp_ctx *ctx, const void *pointer)
{
    (void)pointer;
    return tpi_refuse(ctx, TP_ERR_NUMERIC, "the task saw %d", 7);
}

static tp_status mark(tp_ctx *ctx, const void *pointer)
{
    int *const *seen = pointer;
    (void)ctx;
    **seen += 1;
    return TP_OK;
}

Test(cuda_backend, a_failed_task_breaks_the_context)
{
    int seen = 0, *pointer = &seen;
    tpt_simulator_configure(&(gpusim_options){.schedule = GPUSIM_LAZY});
    tp_ctx *ctx = create((tp_ctx_desc){0});
    cr_assert_eq(ctx->backend->run(ctx->compute, fail, NULL, 0), TP_OK);
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_ERR_NUMERIC);
    cr_assert_str_eq(tp_ctx_message(ctx), "the task saw 7");
    cr_assert_eq(ctx->backend->run(ctx->compute, mark, &pointer, sizeof pointer), TP_ERR_NUMERIC);
    cr_assert_eq(ctx->backend->run_anyway(ctx->compute, mark, &pointer, sizeof pointer), TP_OK);
    ctx->backend->stream_synchronize(ctx->compute);
    cr_assert_eq(seen, 1);
    end(ctx);
}

Test(cuda_backend, too_much_memory_is_a_refusal)
{
    void *memory;
    tp_device_info info;
    tpt_simulator_configure(&(gpusim_options){.device_bytes = (size_t)1 << 26});
    cr_assert_eq(tp_device_describe(TP_DEVICE_CUDA, 0, TPT_CUDA_PLUGIN, &info), TP_OK, "%s", tp_last_message());
    tp_ctx *ctx = create((tp_ctx_desc){0});
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 2 * info.memory_bytes, &memory), TP_ERR_MEMORY);
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 1000, &memory), TP_OK);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_OTHER).bytes >= 1000, true);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, 1000);
    end(ctx);
}

/* Refused as on the CPU: in a kernel it would break the context. */
Test(cuda_backend, collectives_refuse_memory_that_is_not_aligned)
{
    tpt_simulator_configure(&(gpusim_options){.devices = 1});
    tp_ctx *ctx = create((tp_ctx_desc){0});
    void *memory;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 64, &memory), TP_OK);
    tp_tensor good = tp_tensor_1d(memory, TP_DTYPE_F32, 4), off = tp_tensor_1d((char *)memory + 33, TP_DTYPE_F32, 4);
    cr_assert_eq(tp_all_reduce(ctx, tp_ctx_world(ctx), off, good, NULL), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "all_reduce: in.data") &&
                  strstr(tp_last_message(), "not aligned to the 4 bytes of f32"),
              "%s", tp_last_message());
    cr_assert_eq(tp_all_gather(ctx, tp_ctx_world(ctx), good, off, NULL), TP_ERR_ARGUMENT);
    float zeros[4] = {0};
    cr_assert_eq(tp_ctx_upload(ctx, memory, zeros, sizeof zeros), TP_OK);
    cr_assert_eq(tp_all_reduce(ctx, tp_ctx_world(ctx), good, good, NULL), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK, "%s", tp_last_message());
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, 64);
    end(ctx);
}

/* The second context of a device finds peer access enabled, which CUDA calls an error: its next launch has nothing of
 * it. */
Test(cuda_backend, peers_may_be_reached_twice)
{
    if (!tpt_simulator_configure(&(gpusim_options){.devices = 2}))
        return; /* there may be one GPU only */
    tp_ctx *ctx[2];
    void *memory;
    for (int i = 0; i < 2; i++)
        ctx[i] = create((tp_ctx_desc){0});
    cr_assert_eq(tp_ctx_allocate(ctx[1], TP_MEMORY_OTHER, 64, &memory), TP_OK);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(ctx[i]->backend->reach(ctx[i], 1), TP_OK, "%s", tp_last_message());
    const tpi_random_fill_args fill = {
        .rows = 1, .cols = 8, .out = memory, .dtype = TP_DTYPE_F32, .stride = 8, .std = 1, .total_cols = 8};
    cr_assert_eq(tpi_random_fill(ctx[1]->compute, &fill), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_ctx_synchronize(ctx[1]), TP_OK, "%s", tp_last_message());
    tp_ctx_release(ctx[1], TP_MEMORY_OTHER, memory, 64);
    tp_ctx_destroy(ctx[0]);
    end(ctx[1]);
}

/* Sizes of any layout are told without a GPU, by the backend's own rules. */
Test(cuda_backend, dry_runs_need_no_device)
{
    tpt_simulator_configure(&(gpusim_options){.devices = 1});
    tp_ctx *ctx = create((tp_ctx_desc){.dry_run = true, .device_index = 9, .mesh = {.tp = 4}});
    tp_model_desc desc = {.family = TP_MODEL_GPT2, .layers = 2, .hidden = 64, .heads = 8, .vocabulary = 301,
                          .positions = 64, .dtype = TP_DTYPE_BF16};
    tp_model *model = NULL;
    cr_assert_eq(tp_model_create(ctx, &desc, &model), TP_OK, "%s", tp_last_message());
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    cr_assert_eq(tp_params_init(ctx, params, count), TP_OK, "%s", tp_last_message());
    const tp_pass pass = {.tokens = 128, .sequences = 2, .ids = (int32_t *)params, .targets = (int32_t *)params};
    void *saved;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, tp_model_saved_bytes(model, &pass), &saved), TP_OK);
    cr_assert_eq(tp_model_forward(ctx, model, &pass, saved), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_model_backward(ctx, model, &pass, saved), TP_OK, "%s", tp_last_message());
    double flops, bytes;
    tp_ctx_work(ctx, &flops, &bytes);
    cr_assert_gt(flops, 1e6);
    tp_ctx_release(ctx, TP_MEMORY_SAVED, saved, tp_model_saved_bytes(model, &pass));
    tp_model_destroy(model);
    end(ctx);
}
