/* Splitting: groups by color, order by key, grids of a mesh, all used at once; symmetric buffers. */
#include "ranks.h"

enum { MAX_RANKS = 16 };

/* Sum of the world ranks of a group, by its own all_reduce. */
static tp_status group_sum(tp_ctx *ctx, tp_comm *comm, int32_t *sum)
{
    int32_t own = tp_ctx_rank(ctx);
    tp_tensor from = tp_tensor_1d(&own, TP_DTYPE_I32, 1), to = tp_tensor_1d(sum, TP_DTYPE_I32, 1);
    return tp_all_reduce(ctx, comm, from, to, NULL);
}

/* More than is staged at a time. */
static tp_status exchange_much(tp_ctx *ctx, void *arg)
{
    enum { BYTES = 3 * 65536 + 5 };
    tp_comm *world = tp_ctx_world(ctx);
    int rank = tp_comm_rank(world), size = tp_comm_size(world);
    unsigned char *mine = tpt_allocate(BYTES), *all = tpt_allocate((size_t)size * BYTES);
    (void)arg;
    for (int i = 0; i < BYTES; i++)
        mine[i] = (unsigned char)(i * 7 + i / 4096 + rank);
    TPI_TRY(world->table->exchange(ctx, world, mine, all, BYTES));
    for (int i = 0; i < size * BYTES; i++)
        CHECK(all[i] == (unsigned char)(i % BYTES * 7 + i % BYTES / 4096 + i / BYTES));
    free(mine);
    free(all);
    return TP_OK;
}

Test(split, exchanges_of_any_size)
{
    for (int ranks = 1; ranks <= 3; ranks++)
        tpt_run(ranks, exchange_much, NULL);
}

static tp_status colors_and_keys(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *world = tp_ctx_world(ctx), *part = NULL;
    int rank = tp_comm_rank(world), size = tp_comm_size(world), color = rank % 3 == 2 ? -1 : rank % 3;
    /* Backwards: the highest rank comes first. */
    TPI_TRY(tp_comm_split(ctx, world, color, -rank, &part));
    if (color < 0) {
        CHECK(part == NULL);
        return TP_OK;
    }
    int members = 0, before = 0;
    int32_t want = 0, sum = 0;
    for (int other = color; other < size; other += 3) {
        members++;
        before += other > rank;
        want += other;
    }
    CHECK(tp_comm_size(part) == members);
    CHECK(tp_comm_rank(part) == before);
    CHECK(strcmp(tp_comm_transport(part), members == 1 ? "self" : "threads") == 0);
    TPI_TRY(group_sum(ctx, part, &sum));
    CHECK(sum == want);
    tp_comm *again = NULL;
    TPI_TRY(tp_comm_split(ctx, part, 0, 0, &again));
    CHECK(tp_comm_rank(again) == before && tp_comm_size(again) == members);
    TPI_TRY(group_sum(ctx, again, &sum));
    CHECK(sum == want);
    tp_comm_destroy(ctx, part);
    TPI_TRY(group_sum(ctx, again, &sum));
    tp_comm_destroy(ctx, again);
    return TP_OK;
}

Test(split, by_color_and_key)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks += ranks < 8 ? 1 : 4)
        tpt_run(ranks, colors_and_keys, NULL);
}

/* Every axis of a mesh has its groups: sums over coordinates along it. */
static tp_status mesh_groups(tp_ctx *ctx, void *arg)
{
    (void)arg;
    const tp_mesh *mesh = tp_ctx_mesh(ctx);
    for (int round = 0; round < 20; round++)
        for (int axis = 0; axis < TP_AXIS_COUNT; axis++) {
            tp_comm *group = tp_ctx_group(ctx, (tp_axis)axis);
            int coordinate[TP_AXIS_COUNT];
            for (int i = 0; i < TP_AXIS_COUNT; i++)
                coordinate[i] = tp_mesh_coordinate(mesh, tp_ctx_rank(ctx), (tp_axis)i);
            CHECK(tp_comm_size(group) == tp_mesh_size(mesh, (tp_axis)axis));
            CHECK(tp_comm_rank(group) == coordinate[axis]);
            int32_t want = 0, sum = 0;
            for (coordinate[axis] = 0; coordinate[axis] < tp_comm_size(group); coordinate[axis]++)
                want += tp_mesh_rank(mesh, coordinate);
            TPI_TRY(group_sum(ctx, group, &sum));
            CHECK(sum == want);
        }
    return TP_OK;
}

Test(split, groups_of_a_mesh)
{
    const tp_mesh meshes[] = {
        {.tp = 2, .dp = 2}, {.tp = 2, .cp = 2, .dp = 2, .pp = 2}, {.tp = 3, .pp = 2}, {.tp = 1, .dp = 5}};
    const int ranks[] = {4, 16, 6, 5};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        tpt_run_with((tp_run_options){.ranks = ranks[i], .ctx.mesh = meshes[i]}, mesh_groups, NULL);
}

/* Communicators of their own keep the operations of several lanes apart, however the lanes are delayed. */
enum { LANES = 3, ROUNDS = 40, LENGTH = 700 };

static tp_status lanes_at_once(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *comm[LANES];
    tpi_stream *stream[LANES];
    static const char *const names[LANES] = {"first", "second", "third"};
    int32_t *data = tpt_array(TP_DTYPE_I32, LANES * ROUNDS * LENGTH);
    int size = tp_comm_size(tp_ctx_world(ctx)), rank = tp_ctx_rank(ctx);
    for (int lane = 0; lane < LANES; lane++) {
        TPI_TRY(tp_comm_split(ctx, tp_ctx_world(ctx), 0, rank, &comm[lane]));
        TPI_TRY(ctx->backend->stream_create(ctx, names[lane], false, &stream[lane]));
    }
    for (int i = 0; i < LANES * ROUNDS * LENGTH; i++)
        data[i] = i * (rank + 1);
    for (int round = 0; round < ROUNDS; round++)
        /* Each rank issues to its lanes in another order; only the order on each communicator is shared. */
        for (int i = 0; i < LANES; i++) {
            int lane = (i + rank) % LANES;
            tp_tensor part = tp_tensor_1d(data + (lane * ROUNDS + round) * LENGTH, TP_DTYPE_I32, LENGTH);
            TPI_TRY(tpi_comm_all_reduce(stream[lane], comm[lane], part, part, NULL));
        }
    TPI_TRY(tp_ctx_synchronize(ctx));
    for (int i = 0; i < LANES * ROUNDS * LENGTH; i++)
        CHECK(data[i] == i * (size * (size + 1) / 2));
    for (int lane = 0; lane < LANES; lane++) {
        ctx->backend->stream_destroy(stream[lane]);
        tp_comm_destroy(ctx, comm[lane]);
    }
    free(data);
    return TP_OK;
}

Test(split, lanes_do_not_mix_up)
{
    /* Not in device order: there ranks wait for each other when they issue, so all must issue in one order. */
    tpt_run_with((tp_run_options){.ranks = 3}, lanes_at_once, NULL);
    tpt_run_with((tp_run_options){.ranks = 4, .ctx.lane_delay_seed = 7}, lanes_at_once, NULL);
}

static tp_status symmetric(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm), rank = tp_comm_rank(comm);
    size_t before = tp_ctx_memory(ctx, TP_MEMORY_COMM).bytes;
    tp_symmetric buffer;
    TPI_TRY(tp_symmetric_create(ctx, comm, (size_t)size * sizeof(int32_t), &buffer));
    CHECK(buffer.bytes == (size_t)size * sizeof(int32_t));
    CHECK(buffer.peer[rank] == buffer.local);
    CHECK(tp_ctx_memory(ctx, TP_MEMORY_COMM).bytes == before + buffer.bytes);
    for (int peer = 0; peer < size; peer++)
        ((int32_t *)buffer.peer[peer])[rank] = 1000 * peer + rank;
    TPI_TRY(tp_barrier(ctx, comm));
    for (int peer = 0; peer < size; peer++)
        CHECK(((int32_t *)buffer.local)[peer] == 1000 * rank + peer);
    tp_symmetric_destroy(ctx, comm, &buffer);
    CHECK(buffer.peer == NULL && tp_ctx_memory(ctx, TP_MEMORY_COMM).bytes == before);
    tp_symmetric_destroy(ctx, comm, &buffer);
    /* Unequal sizes are refused on all ranks, and nothing is left. */
    if (size > 1) {
        CHECK(tp_symmetric_create(ctx, comm, rank == 1 ? 128 : 64, &buffer) == TP_ERR_MISMATCH);
        CHECK(strstr(tp_ctx_message(ctx), "64") && strstr(tp_ctx_message(ctx), "128"));
        CHECK(tp_ctx_memory(ctx, TP_MEMORY_COMM).bytes == before);
    }
    return tp_barrier(ctx, comm);
}

Test(split, symmetric_buffers)
{
    for (int ranks = 1; ranks <= 8; ranks++)
        tpt_run(ranks, symmetric, NULL);
}
