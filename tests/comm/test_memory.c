/* Memory: every allocation may fail and nothing is left behind; sizes are computed past 2^31; warm operations allocate
 * nothing. */
#include <stdint.h>

#include "comm/collective.h"
#include "ranks.h"
#include "support/counting.h"

enum { RANKS = 3 };

static tp_status every_call(tp_ctx *ctx, tp_comm *comm)
{
    enum { COUNT = 9000 };
    float *x = tpt_array(TP_DTYPE_F32, COUNT), *y = tpt_array(TP_DTYPE_F32, COUNT);
    int64_t third = COUNT / tp_comm_size(comm);
    tp_tensor all = tp_tensor_1d(x, TP_DTYPE_F32, COUNT), out = tp_tensor_1d(y, TP_DTYPE_F32, COUNT);
    tp_tensor part = tp_tensor_1d(y, TP_DTYPE_F32, third);
    tp_status status = tp_all_reduce(ctx, comm, all, all, NULL);
    status = status ? status : tp_all_reduce(ctx, comm, tp_tensor_rows(all, 0, 10), tp_tensor_rows(all, 0, 10), NULL);
    status = status ? status : tp_reduce_scatter(ctx, comm, all, part, NULL, NULL);
    status = status ? status : tp_all_gather(ctx, comm, part, all, NULL);
    status = status ? status : tp_broadcast(ctx, comm, all, 1);
    status = status ? status : tp_all_to_all(ctx, comm, all, NULL, out, NULL);
    status = status ? status : tp_barrier(ctx, comm);
    free(x);
    free(y);
    return status;
}

static tp_status make_and_use(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *world = tp_ctx_world(ctx), *part = NULL;
    tp_status status = tp_comm_split(ctx, world, tp_ctx_rank(ctx) % 2, 0, &part);
    if (status != TP_OK)
        return status;
    tp_symmetric buffer;
    status = tp_symmetric_create(ctx, world, 4096, &buffer);
    if (status == TP_OK)
        status = every_call(ctx, world);
    tp_symmetric_destroy(ctx, world, &buffer);
    tp_comm_destroy(ctx, part);
    return status;
}

/* The n-th allocation of the whole run fails, whichever rank makes it. */
Test(memory, every_allocation_may_fail)
{
    long long total = 0;
    for (long long n = 0; n <= total; n++) {
        tpt_counting counting = {.fail_at = n}; /* the first round only counts */
        const tp_run_options options = {
            .ranks = RANKS,
            .ctx = {.threads = 1, .timeout_ms = 60000, .allocator = tpt_counting_allocator(&counting)}};
        tp_status status = tp_run_ranks(&options, make_and_use, NULL);
        cr_assert_eq(atomic_load(&counting.live), 0, "allocation %lld of %lld: %lld blocks left", n, total,
                     atomic_load(&counting.live));
        cr_assert_eq(atomic_load(&counting.other_sizes), 0, "allocation %lld of %lld: blocks of another size", n,
                     total);
        if (n == 0) {
            cr_assert_eq(status, TP_OK, "%s", tp_last_message());
            total = atomic_load(&counting.calls);
            cr_assert_gt(total, 0);
            continue;
        }
        cr_assert_eq(status, TP_ERR_MEMORY, "allocation %lld of %lld: %s: %s", n, total, tp_status_name(status),
                     tp_last_message());
    }
}

/* ---- one rank has no memory: the others are told whose it is, and all go on ---- */

static _Thread_local bool has_none;

static void *allocate_unless(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return has_none ? NULL : aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void release_to_heap(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

typedef tp_status (*make_fn)(tp_ctx *ctx);

static tp_status make_split(tp_ctx *ctx)
{
    tp_comm *part = NULL;
    tp_status status = tp_comm_split(ctx, tp_ctx_world(ctx), 0, 0, &part);
    tp_comm_destroy(ctx, part);
    return status;
}

static tp_status make_symmetric(tp_ctx *ctx)
{
    tp_symmetric buffer;
    tp_status status = tp_symmetric_create(ctx, tp_ctx_world(ctx), 4096, &buffer);
    tp_symmetric_destroy(ctx, tp_ctx_world(ctx), &buffer);
    return status;
}

static tp_status make_board(tp_ctx *ctx)
{
    tp_comm *world = tp_ctx_world(ctx);
    tpi_board *board = NULL;
    tp_status status =
        world->table->board->create(ctx, world, &(tpi_board_desc){.flags = 3, .page_bytes = 8, .lanes = 1}, &board);
    world->table->board->destroy(ctx, board);
    return status;
}

static tp_status make_without_memory(tp_ctx *ctx, void *arg)
{
    static const make_fn makes[] = {make_split, make_symmetric, make_board};
    const int *last = arg;
    bool poor = tp_ctx_rank(ctx) == 1;
    tp_status status = TP_OK;
    for (int i = 0; i <= *last; i++) {
        has_none = poor;
        status = makes[i](ctx);
        has_none = false;
        CHECK(status == (poor ? TP_ERR_MEMORY : TP_ERR_PEER));
        CHECK(strstr(tp_ctx_message(ctx), "rank 1 of 3 has no memory") != NULL);
        CHECK(tp_ctx_failure(ctx) == TP_OK);
        TPI_TRY(tp_barrier(ctx, tp_ctx_world(ctx)));
        TPI_TRY(makes[i](ctx));
    }
    has_none = poor;
    status = makes[*last](ctx);
    has_none = false;
    return status;
}

Test(memory, peers_are_told_whose_memory_is_missing)
{
    for (int last = 0; last < 3; last++) {
        const tp_run_options options = {
            .ranks = RANKS,
            .ctx = {.threads = 1, .timeout_ms = 60000, .allocator = {allocate_unless, release_to_heap, NULL}}};
        cr_assert_eq(tp_run_ranks(&options, make_without_memory, &last), TP_ERR_MEMORY, "%s", tp_last_message());
        cr_assert(strstr(tp_last_message(), "rank 1: rank 1 of 3 has no memory for") != NULL, "%s", tp_last_message());
    }
}

static tp_status allocates_nothing_warm(tp_ctx *ctx, void *arg)
{
    const tpt_counting *counting = arg;
    tp_comm *world = tp_ctx_world(ctx);
    TPI_TRY(every_call(ctx, world));
    TPI_TRY(tp_barrier(ctx, world));
    long long before = atomic_load(&counting->calls);
    TPI_TRY(tp_barrier(ctx, world));
    for (int i = 0; i < 3; i++)
        TPI_TRY(every_call(ctx, world));
    TPI_TRY(tp_barrier(ctx, world));
    CHECK(atomic_load(&counting->calls) == before);
    return TP_OK;
}

Test(memory, warm_calls_allocate_nothing)
{
    tpt_counting counting = {0};
    tpt_run_with((tp_run_options){.ranks = RANKS, .ctx.allocator = tpt_counting_allocator(&counting)},
                 allocates_nothing_warm, &counting);
}

/* ---- sizes past 2^31, without the memory ---- */

Test(memory, sizes_past_two_gigabytes)
{
    const int64_t elements = (INT64_C(1) << 33) + 5;
    cr_assert_eq(tpi_comm_bytes(elements, TP_DTYPE_I64), (size_t)8 * ((UINT64_C(1) << 33) + 5));
    char *base = (char *)(uintptr_t)4096;
    cr_assert_eq((uintptr_t)tpi_comm_at(base, elements, TP_DTYPE_BF16), 4096 + 2 * ((UINT64_C(1) << 33) + 5));
    cr_assert_null(tpi_comm_at(NULL, elements, TP_DTYPE_BF16));
    const int64_t counts[] = {INT64_C(3) << 31, 1, INT64_C(5) << 31};
    tp_range last = tpi_comm_range(counts, (INT64_C(8) << 31) + 1, 3, 2);
    cr_assert_eq(last.begin, (INT64_C(3) << 31) + 1);
    cr_assert_eq(last.end, (INT64_C(8) << 31) + 1);
}

/* A group of one copies nothing in place, so tensors may be as large as they like. */
static tp_status huge_in_place(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *comm = tp_ctx_world(ctx);
    tp_tensor huge = tp_tensor_2d((void *)(uintptr_t)4096, TP_DTYPE_BF16, (INT64_C(1) << 31) + 3, 5);
    TPI_TRY(tp_all_gather(ctx, comm, huge, huge, NULL));
    return tp_broadcast(ctx, comm, huge, 0);
}

Test(memory, huge_tensors_pass_the_checks)
{
    tpt_run(1, huge_in_place, NULL);
}

/* Rank 0 has no rows at all. */
static tp_status gather_from_one(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *comm = tp_ctx_world(ctx);
    const int64_t counts[] = {0, 3}, rows = 3, cols = 7;
    uint8_t in[21], out[21];
    for (int i = 0; i < 21; i++)
        in[i] = (uint8_t)(i + 1);
    TPI_TRY(tp_all_gather(ctx, comm, tp_tensor_2d(in, TP_DTYPE_U8, counts[tp_comm_rank(comm)], cols),
                          tp_tensor_2d(out, TP_DTYPE_U8, rows, cols), counts));
    CHECK(memcmp(in, out, sizeof in) == 0);
    return TP_OK;
}

Test(memory, a_rank_without_rows)
{
    tpt_run(2, gather_from_one, NULL);
}
