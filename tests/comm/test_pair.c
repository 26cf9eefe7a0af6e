/* Two ranks exchange small messages through two buffers that they swap from one operation to the next: mixed operations of mixed sizes, in a row, with one rank
 * now and then late. */
#include "comm/ranks.h"

#include <time.h>

#define MOST 6000 /* elements: beyond staging */
#define OPERATIONS 400

typedef struct buffers {
    float in[MOST], out[MOST];
} buffers;

static unsigned next(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Whole numbers, so that sums are exact. */
static float value_of(int rank, unsigned operation, int64_t i)
{
    return (float)((rank + 1) * 1000 + (int)(operation % 97) * 7 + (int)(i % 251));
}

static void fill(float *data, int rank, unsigned operation, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        data[i] = value_of(rank, operation, i);
}

static tp_status all_reduce(tp_ctx *ctx, buffers *own, unsigned operation, int64_t count, bool in_place)
{
    int rank = tp_ctx_rank(ctx);
    float *out = in_place ? own->in : own->out;
    fill(own->in, rank, operation, 0, count);
    TPI_TRY(tp_all_reduce(ctx, tp_ctx_world(ctx), tp_tensor_1d(own->in, TP_DTYPE_F32, count), tp_tensor_1d(out, TP_DTYPE_F32, count), NULL));
    for (int64_t i = 0; i < count; i++)
        CHECK(out[i] == value_of(0, operation, i) + value_of(1, operation, i));
    return TP_OK;
}

static tp_status reduce_scatter(tp_ctx *ctx, buffers *own, unsigned operation, int64_t count, int64_t first)
{
    int rank = tp_ctx_rank(ctx);
    const int64_t counts[2] = {first, count - first};
    int64_t begin = rank == 0 ? 0 : first;
    fill(own->in, rank, operation, 0, count);
    TPI_TRY(tp_reduce_scatter(ctx, tp_ctx_world(ctx), tp_tensor_1d(own->in, TP_DTYPE_F32, count), tp_tensor_1d(own->out, TP_DTYPE_F32, counts[rank]), counts, NULL));
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK(own->out[i] == value_of(0, operation, begin + i) + value_of(1, operation, begin + i));
    return TP_OK;
}

static tp_status all_gather(tp_ctx *ctx, buffers *own, unsigned operation, int64_t count, int64_t first)
{
    int rank = tp_ctx_rank(ctx);
    const int64_t counts[2] = {first, count - first};
    int64_t begin = rank == 0 ? 0 : first;
    fill(own->out, rank, operation, begin, begin + counts[rank]);
    TPI_TRY(tp_all_gather(ctx, tp_ctx_world(ctx), tp_tensor_1d(own->out + begin, TP_DTYPE_F32, counts[rank]), tp_tensor_1d(own->out, TP_DTYPE_F32, count), counts));
    for (int64_t i = 0; i < count; i++)
        CHECK(own->out[i] == value_of(i < first ? 0 : 1, operation, i));
    return TP_OK;
}

static tp_status broadcast(tp_ctx *ctx, buffers *own, unsigned operation, int64_t count, int root)
{
    fill(own->out, tp_ctx_rank(ctx), operation, 0, count);
    TPI_TRY(tp_broadcast(ctx, tp_ctx_world(ctx), tp_tensor_1d(own->out, TP_DTYPE_F32, count), root));
    for (int64_t i = 0; i < count; i++)
        CHECK(own->out[i] == value_of(root, operation, i));
    return TP_OK;
}

static void be_late(unsigned microseconds)
{
    const struct timespec pause = {0, (long)microseconds * 1000};
    nanosleep(&pause, NULL);
}

static tp_status run(tp_ctx *ctx, void *arg)
{
    buffers *own = (buffers *)arg + tp_ctx_rank(ctx);
    unsigned state = 5, lateness = 17 + (unsigned)tp_ctx_rank(ctx);
    for (unsigned operation = 0; operation < OPERATIONS; operation++) {
        unsigned kind = next(&state) % 6;
        int64_t count = next(&state) % 3 == 0 ? next(&state) % MOST : next(&state) % 300;
        int64_t first = count > 0 ? next(&state) % (count + 1) : 0;
        if (next(&lateness) % 8 == 0)
            be_late(next(&lateness) % 100);
        switch (kind) {
        case 0: TPI_TRY(all_reduce(ctx, own, operation, count, true)); break;
        case 1: TPI_TRY(all_reduce(ctx, own, operation, count, false)); break;
        case 2: TPI_TRY(reduce_scatter(ctx, own, operation, count, first)); break;
        case 3: TPI_TRY(all_gather(ctx, own, operation, count, first)); break;
        case 4: TPI_TRY(broadcast(ctx, own, operation, count, (int)(operation & 1))); break;
        default: TPI_TRY(tp_barrier(ctx, tp_ctx_world(ctx)));
        }
    }
    return TP_OK;
}

Test(pair, mixed_operations)
{
    static buffers both[2];
    tpt_run_with((tp_run_options){.ranks = 2}, run, both);
}

/* Sums of two in every floating dtype, of sizes that fill vectors and don't, are those of the general op. */
static tp_status small_sums(tp_ctx *ctx, void *arg)
{
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};
    int rank = tp_ctx_rank(ctx);
    (void)arg;
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        for (int64_t count = 1; count < 200; count += 13) {
            unsigned char first[800], second[800];
            unsigned state = (unsigned)count * 2 + (unsigned)rank;
            for (int64_t i = 0; i < count; i++)
                tpt_set(first, dtypes[d], i, (double)((int)(next(&state) % 2001) - 1000) / 64);
            memcpy(second, first, sizeof second);
            tp_tensor a = tp_tensor_1d(first, dtypes[d], count), b = tp_tensor_1d(second, dtypes[d], count);
            const tp_reduce_desc two_shot = {.algorithm = TP_ALL_REDUCE_TWO_SHOT};
            TPI_TRY(tp_all_reduce(ctx, tp_ctx_world(ctx), a, a, NULL));
            TPI_TRY(tp_all_reduce(ctx, tp_ctx_world(ctx), b, b, &two_shot));
            CHECK(memcmp(first, second, (size_t)count * tp_dtype_size(dtypes[d])) == 0);
        }
    return TP_OK;
}

Test(pair, small_sums)
{
    tpt_run_with((tp_run_options){.ranks = 2}, small_sums, NULL);
}
