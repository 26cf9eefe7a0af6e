/* Creating contexts: what is refused and how, defaults, accounts, failures, and that two contexts share nothing. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <string.h>
#include <tp/comm.h>

#include "core/context.h"
#include "core/stream.h"

static void check_refused(tp_ctx_desc desc, tp_status status, const char *first, const char *second)
{
    tp_ctx *ctx = (tp_ctx *)&desc;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), status, "%s: %s", first, tp_last_message());
    cr_assert_null(ctx);
    cr_assert_not_null(strstr(tp_last_message(), first), "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), second), "%s", tp_last_message());
}

static void *never_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)bytes, (void)alignment;
    *(int *)user += 1;
    return NULL;
}

static void never_release(void *user, void *memory, size_t bytes)
{
    (void)memory, (void)bytes;
    *(int *)user += 1;
}

Test(context, wrong_fields_are_named_before_anything_is_allocated)
{
    int calls = 0;
    tp_allocator none = {never_allocate, never_release, &calls};
    check_refused((tp_ctx_desc){.allocator = none, .threads = -1}, TP_ERR_ARGUMENT, "threads is -1", "0");
    check_refused((tp_ctx_desc){.allocator = none, .threads = 5000}, TP_ERR_ARGUMENT, "threads is 5000", "1024");
    check_refused((tp_ctx_desc){.allocator = none, .rank = 1}, TP_ERR_ARGUMENT, "rank is 1", "0");
    check_refused((tp_ctx_desc){.allocator = none, .mesh.tp = 2}, TP_ERR_ARGUMENT, "mesh.tp is 2", "1 ranks");
    check_refused((tp_ctx_desc){.allocator = none, .isa = TP_ISA_COUNT}, TP_ERR_ARGUMENT, "isa is 5", "4");
    check_refused((tp_ctx_desc){.allocator = none, .device = 7}, TP_ERR_ARGUMENT, "device is 7", "1");
    check_refused((tp_ctx_desc){.allocator = none, .device = TP_DEVICE_CUDA, .plugin = "/nowhere/libtp_cuda.so"},
                  TP_ERR_BACKEND, "CUDA: no plugin", "/nowhere");
    check_refused((tp_ctx_desc){.allocator = none, .device_index = 3}, TP_ERR_ARGUMENT, "device_index is 3", "0");
    check_refused((tp_ctx_desc){.allocator = none, .sum_order = 2}, TP_ERR_ARGUMENT, "sum_order is 2", "1");
    check_refused((tp_ctx_desc){.allocator = none, .tf32 = true}, TP_ERR_ARGUMENT,
                  "tf32 is set, which needs device TP_DEVICE_CUDA (1)", "not 0");
    check_refused((tp_ctx_desc){.allocator = none, .tf32 = true, .sum_order = TP_SUM_FAST}, TP_ERR_ARGUMENT,
                  "tf32 is set, which needs device", "not 0");
    check_refused((tp_ctx_desc){.allocator = none, .tf32 = true, .device = TP_DEVICE_CUDA}, TP_ERR_ARGUMENT,
                  "tf32 is set, which needs sum_order TP_SUM_FAST (1)", "not 0");
    check_refused((tp_ctx_desc){.allocator = none, .timeout_ms = -5}, TP_ERR_ARGUMENT, "timeout_ms is -5", "0");
    check_refused((tp_ctx_desc){.allocator = none, .version = 990000}, TP_ERR_VERSION, "99.0", "library is 0.1");
    check_refused((tp_ctx_desc){.allocator = {never_allocate, NULL, &calls}}, TP_ERR_ARGUMENT, "allocate", "release");
    cr_assert_eq(calls, 0);
    check_refused((tp_ctx_desc){.allocator = none}, TP_ERR_MEMORY, "out of memory", "bytes");
    cr_assert_eq(calls, 1);
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(NULL, &ctx), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){0}, NULL), TP_ERR_ARGUMENT);
    tp_ctx_destroy(NULL);
}

Test(context, missing_instruction_sets_are_refused)
{
    for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++) {
        tp_ctx_desc desc = {.isa = (tp_isa)isa};
        if (!tp_isa_available((tp_isa)isa)) {
            check_refused(desc, TP_ERR_BACKEND, tp_isa_name((tp_isa)isa), "machine");
            continue;
        }
        tp_ctx *ctx;
        cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
        cr_assert_eq(tp_ctx_isa(ctx), (tp_isa)isa);
        tp_ctx_destroy(ctx);
    }
    cr_assert(tp_isa_available(TP_ISA_PORTABLE));
    cr_assert_str_eq(tp_isa_name(TP_ISA_AVX512_BF16), "avx512_bf16");
    cr_assert_str_eq(tp_isa_name((tp_isa)-1), "invalid");
}

Test(context, defaults_and_versions)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.version = TP_VERSION, .seed = 42}, &ctx), TP_OK, "%s",
                 tp_last_message());
    cr_assert_eq(tp_ctx_rank(ctx), 0);
    cr_assert_geq(tp_ctx_threads(ctx), 1);
    cr_assert_eq(tp_ctx_seed(ctx), 42u);
    cr_assert_neq(tp_ctx_isa(ctx), TP_ISA_AUTO);
    cr_assert_eq(tp_ctx_mesh(ctx)->tp, 1);
    cr_assert_eq(tp_comm_size(tp_ctx_world(ctx)), 1);
    for (int axis = 0; axis < TP_AXIS_COUNT; axis++) {
        cr_assert_eq(tp_comm_size(tp_ctx_group(ctx, (tp_axis)axis)), 1);
        cr_assert_str_eq(tp_comm_transport(tp_ctx_group(ctx, (tp_axis)axis)), "self");
    }
    cr_assert_str_empty(tp_ctx_message(ctx));
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    tp_ctx_destroy(ctx);
    /* Another patch of the same minor version fits. */
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.version = TP_VERSION + 7}, &ctx), TP_OK);
    tp_ctx_destroy(ctx);
}

Test(context, pass_rows)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){0}, &ctx), TP_OK);
    tp_pass pass = {.tokens = 33};
    for (int sequence_parallel = 0; sequence_parallel < 2; sequence_parallel++) {
        tp_range rows = tp_pass_rows(ctx, &pass, sequence_parallel);
        cr_assert(rows.begin == 0 && rows.end == 33);
    }
    ctx->mesh = (tp_mesh){4, 1, 1, 1}; /* as if this were rank 2 of 4 */
    ctx->desc.rank = 2;
    tp_range rows = tp_pass_rows(ctx, &pass, true);
    cr_assert(rows.begin == 16 && rows.end == 24);
    rows = tp_pass_rows(ctx, &pass, false);
    cr_assert(rows.begin == 0 && rows.end == 33);
    tp_ctx_destroy(ctx);
}

/* Every group holds the ranks that differ in its coordinate only, in the order of that coordinate. */
static tp_status check_groups(tp_ctx *ctx, void *arg)
{
    atomic_int *wrong = arg;
    const tp_mesh *mesh = tp_ctx_mesh(ctx);
    for (int axis = 0; axis < TP_AXIS_COUNT; axis++) {
        tp_comm *group = tp_ctx_group(ctx, (tp_axis)axis);
        int size = tp_mesh_size(mesh, (tp_axis)axis);
        if (tp_comm_size(group) != size ||
            tp_comm_rank(group) != tp_mesh_coordinate(mesh, tp_ctx_rank(ctx), (tp_axis)axis))
            atomic_fetch_add(wrong, 1);
        int32_t mine = tp_ctx_rank(ctx), all[16], coordinate[TP_AXIS_COUNT];
        TPI_TRY(tp_all_gather(ctx, group, tp_tensor_1d(&mine, TP_DTYPE_I32, 1), tp_tensor_1d(all, TP_DTYPE_I32, size),
                              NULL));
        TPI_TRY(tp_ctx_synchronize(ctx));
        for (int i = 0; i < TP_AXIS_COUNT; i++)
            coordinate[i] = tp_mesh_coordinate(mesh, mine, (tp_axis)i);
        for (coordinate[axis] = 0; coordinate[axis] < size; coordinate[axis]++) {
            if (all[coordinate[axis]] != tp_mesh_rank(mesh, coordinate))
                atomic_fetch_add(wrong, 1);
        }
    }
    return TP_OK;
}

Test(context, groups_of_the_mesh)
{
    static const tp_mesh meshes[] = {{2, 2, 2, 2}, {4, 1, 3, 1}, {0, 1, 2, 1}, {1, 1, 1, 5}, {0, 0, 0, 0}};
    static const int ranks[] = {16, 12, 8, 5, 3};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        atomic_int wrong = 0;
        tp_run_options options = {.ranks = ranks[i], .ctx = {.mesh = meshes[i], .threads = 1}};
        cr_assert_eq(tp_run_ranks(&options, check_groups, &wrong), TP_OK, "%s", tp_last_message());
        cr_assert_eq(atomic_load(&wrong), 0);
    }
}

Test(context, a_wrong_mesh_is_refused_on_all_ranks)
{
    atomic_int wrong = 0;
    tp_run_options options = {.ranks = 4, .ctx = {.mesh.tp = 3}};
    cr_assert_eq(tp_run_ranks(&options, check_groups, &wrong), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_last_message(), "tp 3"), "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), "4 ranks"), "%s", tp_last_message());
}

/* The lane of one rank fails while its peers wait for it in a collective. */
static tp_status fail_one(tp_ctx *ctx, void *arg)
{
    (void)arg;
    if (tp_ctx_rank(ctx) == 1)
        return tpi_fail(ctx, TP_ERR_NUMERIC, "loss is not finite at step %d", 7);
    tp_status status = tp_barrier(ctx, tp_ctx_world(ctx));
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    bool told = status == TP_ERR_PEER && strstr(tp_ctx_message(ctx), "loss is not finite at step 7");
    return told ? status : tpi_fail(ctx, TP_ERR_INTERNAL, "peer was told %s", tp_ctx_message(ctx));
}

Test(context, a_failure_reaches_the_peers)
{
    tp_run_options options = {.ranks = 3};
    cr_assert_eq(tp_run_ranks(&options, fail_one, NULL), TP_ERR_NUMERIC, "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), "loss is not finite at step 7"), "%s", tp_last_message());
}

typedef struct log_record {
    int calls;
    char text[256];
} log_record;

static void keep_log(void *user, const char *text)
{
    log_record *record = user;
    record->calls++;
    snprintf(record->text, sizeof record->text, "%s", text);
}

Test(context, first_failure_wins)
{
    log_record record = {0};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.log = keep_log, .log_user = &record}, &ctx), TP_OK);
    cr_assert_eq(tpi_refuse(ctx, TP_ERR_SHAPE, "rows %d", 5), TP_ERR_SHAPE);
    cr_assert_str_eq(tp_ctx_message(ctx), "rows 5");
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK, "a refusal breaks nothing");
    cr_assert_eq(tpi_ctx_usable(ctx), TP_OK);
    cr_assert_eq(tpi_fail(ctx, TP_ERR_NUMERIC, "first %d", 1), TP_ERR_NUMERIC);
    cr_assert_eq(tpi_fail(ctx, TP_ERR_IO, "second"), TP_ERR_IO);
    tpi_refuse(ctx, TP_ERR_SHAPE, "third");
    cr_assert_eq(tp_ctx_failure(ctx), TP_ERR_NUMERIC);
    cr_assert_str_eq(tp_ctx_message(ctx), "first 1");
    cr_assert_eq(tpi_ctx_usable(ctx), TP_ERR_NUMERIC);
    cr_assert_str_eq(tp_last_message(), "first 1");
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_ERR_NUMERIC);
    void *memory;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_PARAM, 8, &memory), TP_ERR_NUMERIC);
    cr_assert_eq(record.calls, 1);
    cr_assert_str_eq(record.text, "first 1");
    tp_ctx_destroy(ctx);
}

static tp_status sleep_some(tp_ctx *ctx, const void *args)
{
    (void)ctx;
    nanosleep(&(struct timespec){0, 2000000L * *(const int *)args}, NULL);
    return TP_OK;
}

Test(context, times_are_accounted)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    double compute, comm;
    tp_ctx_times(ctx, &compute, &comm);
    cr_assert(compute == 0 && comm == 0);
    tpi_add_seconds(ctx, 0.25, 0.5);
    tpi_add_seconds(ctx, 0.25, 0.5);
    tp_ctx_times(ctx, &compute, &comm);
    cr_assert(compute == 0.5 && comm == 1.0);
    tp_ctx_times_reset(ctx);
    int units = 1;
    cr_assert_eq(ctx->backend->run(ctx->compute, sleep_some, &units, sizeof units), TP_OK);
    tp_ctx_times(ctx, &compute, NULL);
    cr_assert_eq(compute, 0, "only ops count as compute");
    tp_ctx_destroy(ctx);
}

typedef struct stranger {
    uint64_t seed;
    int threads;
    bool fine;
} stranger;

/* Makes and uses a context of its own, fails it at the end, and must never see the other thread's. */
static void *live(void *argument)
{
    stranger *self = argument;
    self->fine = true;
    for (int round = 0; round < 20 && self->fine; round++) {
        tp_ctx *ctx;
        if (tp_ctx_create(&(tp_ctx_desc){.seed = self->seed, .threads = self->threads}, &ctx) != TP_OK)
            return self->fine = false, NULL;
        char text[32];
        snprintf(text, sizeof text, "of %llu", (unsigned long long)self->seed);
        void *memory = NULL;
        self->fine = tp_ctx_allocate(ctx, TP_MEMORY_PARAM, 100, &memory) == TP_OK && tp_ctx_seed(ctx) == self->seed &&
                     tp_ctx_memory(ctx, TP_MEMORY_PARAM).bytes == 100 && tp_ctx_threads(ctx) == self->threads;
        tp_ctx_release(ctx, TP_MEMORY_PARAM, memory, 100);
        tpi_fail(ctx, TP_ERR_IO, "%s", text);
        self->fine = self->fine && strcmp(tp_ctx_message(ctx), text) == 0 && strcmp(tp_last_message(), text) == 0;
        tp_ctx_destroy(ctx);
    }
    return NULL;
}

Test(context, two_contexts_share_nothing)
{
    stranger strangers[2] = {{.seed = 1, .threads = 1}, {.seed = 2, .threads = 3}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, live, &strangers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert(strangers[0].fine && strangers[1].fine);
}

Test(context, every_slot_of_the_backend_is_filled)
{
    const tpi_backend *backend = &tpi_backend_cpu;
    void *const *slot = (void *const *)(const void *)backend;
    for (size_t i = 0; i < offsetof(tpi_backend, square_sum_list) / sizeof *slot; i++)
        cr_assert_not_null(slot[i], "slot %zu", i);
}

Test(context, none_has_nothing)
{
    double one = 1, two = 2;
    tp_ctx *ctx = (tp_ctx *)&one;
    cr_expect_eq(tp_ctx_create(NULL, &ctx), TP_ERR_ARGUMENT);
    cr_expect_null(ctx);
    cr_expect_eq(tp_ctx_rank(NULL), 0);
    cr_expect_eq(tp_ctx_threads(NULL), 0);
    cr_expect_eq(tp_ctx_isa(NULL), TP_ISA_AUTO);
    cr_expect_eq(tp_ctx_seed(NULL), 0);
    cr_expect_null(tp_ctx_mesh(NULL));
    cr_expect_null(tp_ctx_world(NULL));
    cr_expect_null(tp_ctx_group(NULL, TP_AXIS_TP));
    cr_expect_eq(tp_ctx_memory(NULL, TP_MEMORY_PARAM).bytes, 0);
    tp_ctx_memory_reset_peak(NULL);
    tp_ctx_times_reset(NULL);
    tp_ctx_release(NULL, TP_MEMORY_PARAM, &two, 8);
    tp_ctx_work(NULL, &one, &two);
    cr_expect(one == 0 && two == 0);
    one = two = 1;
    tp_ctx_times(NULL, &one, &two);
    cr_expect(one == 0 && two == 0);
    cr_expect_eq(tp_comm_rank(NULL), 0);
    cr_expect_eq(tp_comm_size(NULL), 0);
    cr_expect_str_eq(tp_comm_transport(NULL), "none");
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_expect_null(tp_ctx_group(ctx, TP_AXIS_COUNT));
    cr_expect_null(tp_ctx_group(ctx, (tp_axis)-1));
    tp_ctx_work(ctx, NULL, NULL);
    void *memory;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 8, &memory), TP_OK);
    tp_ctx_release(ctx, TP_MEMORY_KINDS, memory, 8); /* no such kind: nothing is done */
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, 8);
    tp_ctx_destroy(ctx);
}
