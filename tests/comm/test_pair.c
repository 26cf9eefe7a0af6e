/* Two ranks exchange small messages through two buffers that they swap from one operation to the next: mixed operations
 * of mixed sizes, in a row, with one rank now and then late. */
#include "comm/ranks.h"

#include <time.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define MOST 6000 /* elements: beyond staging */
#define STAGED 4096 /* elements of f32 that a staging buffer holds */
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
    TPI_TRY(tp_all_reduce(ctx, tp_ctx_world(ctx), tp_tensor_1d(own->in, TP_DTYPE_F32, count),
                          tp_tensor_1d(out, TP_DTYPE_F32, count), NULL));
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
    TPI_TRY(tp_reduce_scatter(ctx, tp_ctx_world(ctx), tp_tensor_1d(own->in, TP_DTYPE_F32, count),
                              tp_tensor_1d(own->out, TP_DTYPE_F32, counts[rank]), counts, NULL));
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
    TPI_TRY(tp_all_gather(ctx, tp_ctx_world(ctx), tp_tensor_1d(own->out + begin, TP_DTYPE_F32, counts[rank]),
                          tp_tensor_1d(own->out, TP_DTYPE_F32, count), counts));
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

/* One, two, and what is chosen give the same bits at the sizes where the way changes. */
static tp_status ways_of_sums(tp_ctx *ctx, void *arg)
{
    static const int64_t edges[] = {0,    1,    15,   64,   768,        769,    1024,       2048,
                                    2049, 3071, 3072, 3073, STAGED - 1, STAGED, STAGED + 1, 2 * STAGED + 3};
    static const tp_all_reduce_algorithm algorithms[] = {TP_ALL_REDUCE_AUTO, TP_ALL_REDUCE_ONE_SHOT,
                                                         TP_ALL_REDUCE_TWO_SHOT};
    float *data = (float *)arg + (size_t)tp_ctx_rank(ctx) * 2 * (2 * STAGED + 3), *result = data + 2 * STAGED + 3;
    for (size_t e = 0; e < COUNT_OF(edges) * 3 * 2; e++) {
        int64_t count = edges[e / 6];
        unsigned operation = (unsigned)e;
        const tp_reduce_desc desc = {.algorithm = algorithms[e % 3]};
        float *out = e / 3 % 2 == 0 ? data : result;
        fill(data, tp_ctx_rank(ctx), operation, 0, count);
        TPI_TRY(tp_all_reduce(ctx, tp_ctx_world(ctx), tp_tensor_1d(data, TP_DTYPE_F32, count),
                              tp_tensor_1d(out, TP_DTYPE_F32, count), &desc));
        for (int64_t i = 0; i < count; i++)
            CHECK(out[i] == value_of(0, operation, i) + value_of(1, operation, i));
    }
    return TP_OK;
}

Test(pair, ways_of_sums)
{
    static float memory[2 * 2 * (2 * STAGED + 3)];
    tpt_run_with((tp_run_options){.ranks = 2}, ways_of_sums, memory);
}

/* f32 written as bf16, and sums with a bias, take the general way; their neighbours of the same size don't. */
static tp_status mixed_ways(tp_ctx *ctx, void *arg)
{
    int rank = tp_ctx_rank(ctx);
    (void)arg;
    for (int64_t cols = 1; cols < 300; cols += 37) {
        float in[2 * 300], plain[2 * 300], biased[2 * 300], bias[300];
        uint16_t narrow[2 * 300];
        for (int64_t i = 0; i < 2 * cols; i++)
            in[i] = (float)((rank + 1) * 4 + (int)(i % 7));
        fill(bias, 0, 3, 0, cols);
        tp_tensor from = tp_tensor_2d(in, TP_DTYPE_F32, 2, cols);
        const tp_reduce_desc with_bias = {.bias = tp_tensor_1d(bias, TP_DTYPE_F32, cols)};
        TPI_TRY(tp_all_reduce(ctx, tp_ctx_world(ctx), from, tp_tensor_2d(plain, TP_DTYPE_F32, 2, cols), NULL));
        TPI_TRY(tp_all_reduce(ctx, tp_ctx_world(ctx), from, tp_tensor_2d(biased, TP_DTYPE_F32, 2, cols), &with_bias));
        TPI_TRY(tp_all_reduce(ctx, tp_ctx_world(ctx), from, tp_tensor_2d(narrow, TP_DTYPE_BF16, 2, cols), NULL));
        for (int64_t i = 0; i < 2 * cols; i++) {
            float sum = (float)(12 + 2 * (int)(i % 7));
            CHECK(plain[i] == sum);
            CHECK(biased[i] == sum + bias[i % cols]);
            CHECK(tpt_get(narrow, TP_DTYPE_BF16, i) == (double)sum);
        }
    }
    return TP_OK;
}

Test(pair, mixed_ways)
{
    tpt_run_with((tp_run_options){.ranks = 2}, mixed_ways, NULL);
}

#if defined(__x86_64__)
/* A caller that flushes subnormals gets the same sums, and keeps its mode. */
static tp_status subnormals(tp_ctx *ctx, void *arg)
{
    unsigned before = _mm_getcsr(), flushing = before | 0x8040u;
    float data[64], moved[64];
    uint32_t bits[64], sums[64];
    (void)arg;
    for (uint32_t i = 0; i < 64; i++)
        bits[i] = i * 1000 + 1;
    memcpy(data, bits, sizeof data);
    memcpy(moved, bits, sizeof moved);
    int64_t begin = tp_ctx_rank(ctx) * 32;
    _mm_setcsr(flushing);
    tp_status status = tp_all_reduce(ctx, tp_ctx_world(ctx), tp_tensor_1d(data, TP_DTYPE_F32, 64),
                                     tp_tensor_1d(data, TP_DTYPE_F32, 64), NULL);
    if (status == TP_OK)
        status = tp_all_gather(ctx, tp_ctx_world(ctx), tp_tensor_1d(moved + begin, TP_DTYPE_F32, 32),
                               tp_tensor_1d(moved, TP_DTYPE_F32, 64), NULL);
    unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    TPI_TRY(status);
    CHECK((after & ~0x3fu) == (flushing & ~0x3fu));
    memcpy(sums, data, sizeof sums);
    for (uint32_t i = 0; i < 64; i++)
        CHECK(sums[i] == bits[i] * 2); /* subnormals add like whole numbers */
    CHECK(memcmp(moved, bits, sizeof moved) == 0);
    return TP_OK;
}

Test(pair, subnormals)
{
    tpt_run_with((tp_run_options){.ranks = 2}, subnormals, NULL);
}
#endif

Test(pair, small_sums)
{
    tpt_run_with((tp_run_options){.ranks = 2}, small_sums, NULL);
}
