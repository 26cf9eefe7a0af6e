#include "collective_case.h"

#include "mirror.h"
#include "values.h"

int64_t bench_collective_count(bench_operation operation, int64_t bytes, tp_dtype dtype, int ranks)
{
    int64_t count = bytes / (int64_t)tp_dtype_size(dtype);
    return operation == BENCH_ALL_TO_ALL ? count / ranks * ranks : count;
}

bool bench_collective_has(bench_operation operation, bool in_place)
{
    if (operation == BENCH_BROADCAST)
        return in_place;
    return operation != BENCH_ALL_TO_ALL && operation != BENCH_SENDRECV ? true : !in_place;
}

bool bench_collective_reduces(bench_operation operation)
{
    return operation == BENCH_ALL_REDUCE || operation == BENCH_REDUCE_SCATTER;
}

double bench_collective_factor(bench_operation operation, int ranks)
{
    double part = (double)(ranks - 1) / ranks;
    switch (operation) {
    case BENCH_ALL_REDUCE: return 2 * part;
    case BENCH_REDUCE_SCATTER:
    case BENCH_ALL_GATHER:
    case BENCH_ALL_TO_ALL: return part;
    case BENCH_BROADCAST:
    case BENCH_SENDRECV:
    case BENCH_OPERATIONS: break;
    }
    return 1;
}

/* A small whole number: the sum over 64 ranks is at most 256, which every dtype holds (u8 wraps). */
static int64_t value_of(int rank, int64_t i)
{
    return (i * 7 + (int64_t)rank * 3) % 5;
}

static int64_t reduced_value(const bench_collective *c, int64_t i)
{
    int64_t result = value_of(0, i);
    for (int rank = 1; rank < c->ranks; rank++) {
        int64_t value = value_of(rank, i);
        if (c->reduce == TP_REDUCE_SUM)
            result += value;
        else if (c->reduce == TP_REDUCE_MAX)
            result = value > result ? value : result;
        else
            result = value < result ? value : result;
    }
    return result;
}

static tp_tensor part_of(const bench_collective *c, void *data, tp_range range)
{
    char *begin = (char *)data + (size_t)range.begin * tp_dtype_size(c->dtype);
    return tp_tensor_1d(begin, c->dtype, range.end - range.begin);
}

static tp_status call_all_to_all(const bench_collective *c)
{
    int64_t counts[BENCH_LIST];
    for (int rank = 0; rank < c->ranks; rank++)
        counts[rank] = c->count / c->ranks;
    return tp_all_to_all(c->ctx, tp_ctx_world(c->ctx), c->from, counts, c->to, counts);
}

static tp_status call_sendrecv(const bench_collective *c)
{
    int next = (c->rank + 1) % c->ranks, previous = (c->rank + c->ranks - 1) % c->ranks;
    tp_p2p ops[2] = {{.send = true, .peer = next, .tensor = c->from},
                     {.send = false, .peer = previous, .tensor = c->to}};
    return tp_p2p_batch(c->ctx, tp_ctx_world(c->ctx), ops, 2);
}

void bench_collective_prepare(bench_collective *c)
{
    tp_range mine = tp_shard_range(c->count, c->ranks, c->rank);
    c->from = tp_tensor_1d(c->in, c->dtype, c->count);
    c->to = tp_tensor_1d(c->in_place && bench_collective_reduces(c->operation) ? c->in : c->out, c->dtype, c->count);
    c->desc = (tp_reduce_desc){.op = c->reduce,
                               .algorithm = c->operation == BENCH_ALL_REDUCE ? c->algorithm : TP_ALL_REDUCE_AUTO};
    if (c->operation == BENCH_REDUCE_SCATTER)
        c->to = part_of(c, c->to.data, mine);
    else if (c->operation == BENCH_ALL_GATHER)
        c->from = part_of(c, c->in_place ? c->out : c->in, mine);
}

tp_status bench_collective_call(const bench_collective *c)
{
    tp_comm *world = tp_ctx_world(c->ctx);
    switch (c->operation) {
    case BENCH_ALL_REDUCE: return tp_all_reduce(c->ctx, world, c->from, c->to, &c->desc);
    case BENCH_REDUCE_SCATTER: return tp_reduce_scatter(c->ctx, world, c->from, c->to, NULL, &c->desc);
    case BENCH_ALL_GATHER: return tp_all_gather(c->ctx, world, c->from, c->to, NULL);
    case BENCH_BROADCAST: return tp_broadcast(c->ctx, world, c->to, 0);
    case BENCH_ALL_TO_ALL: return call_all_to_all(c);
    case BENCH_SENDRECV: return call_sendrecv(c);
    case BENCH_OPERATIONS: break;
    }
    return TP_ERR_ARGUMENT;
}

/* Which rank's element `i` of the result came from, and which element of it that was. */
static int64_t expected_value(const bench_collective *c, int64_t i)
{
    int64_t piece = c->count / c->ranks;
    switch (c->operation) {
    case BENCH_ALL_REDUCE:
    case BENCH_REDUCE_SCATTER: return reduced_value(c, i);
    case BENCH_ALL_GATHER:
        for (int rank = 0; rank < c->ranks; rank++)
            if (i < tp_shard_range(c->count, c->ranks, rank).end)
                return value_of(rank, i);
        return -1;
    case BENCH_BROADCAST: return value_of(0, i);
    case BENCH_ALL_TO_ALL: return value_of((int)(i / piece), c->rank * piece + i % piece);
    case BENCH_SENDRECV: return value_of((c->rank + c->ranks - 1) % c->ranks, i);
    case BENCH_OPERATIONS: break;
    }
    return -1;
}

/* This rank's input; and output, which holds the input where the operation begins there. */
static tp_status fill_buffers(const bench_collective *c, bench_mirror *in, bench_mirror *out)
{
    bool from_out = c->operation == BENCH_BROADCAST || (c->operation == BENCH_ALL_GATHER && c->in_place);
    for (int64_t i = 0; i < c->count; i++) {
        bench_store(in->host, c->dtype, i, value_of(c->rank, i));
        bench_store(out->host, c->dtype, i, from_out ? value_of(c->rank, i) : 77);
    }
    tp_status status = bench_mirror_put(in);
    return status == TP_OK ? bench_mirror_put(out) : status;
}

static int64_t count_wrong(const bench_collective *c, const void *result)
{
    tp_range range = {0, c->count};
    if (c->operation == BENCH_REDUCE_SCATTER)
        range = tp_shard_range(c->count, c->ranks, c->rank);
    int64_t wrong = 0;
    for (int64_t i = range.begin; i < range.end; i++)
        wrong += bench_load(result, c->dtype, i) != bench_rounded(c->dtype, expected_value(c, i));
    return wrong;
}

tp_status bench_collective_check(const bench_collective *c, int64_t *wrong)
{
    size_t bytes = (size_t)c->count * tp_dtype_size(c->dtype);
    bench_mirror in, out;
    tp_status opened = bench_mirror_open(&in, c->ctx, c->in, bytes),
              status = bench_mirror_open(&out, c->ctx, c->out, bytes);
    const bench_mirror *result = c->in_place && bench_collective_reduces(c->operation) ? &in : &out;
    status = opened != TP_OK ? opened : status;
    if (status == TP_OK)
        status = fill_buffers(c, &in, &out);
    if (status == TP_OK)
        status = bench_collective_call(c);
    if (status == TP_OK)
        status = tp_ctx_synchronize(c->ctx);
    if (status == TP_OK)
        status = bench_mirror_get(result);
    if (status == TP_OK)
        *wrong = count_wrong(c, result->host);
    bench_mirror_close(&in);
    bench_mirror_close(&out);
    return status;
}
