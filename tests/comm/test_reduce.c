/* all_reduce and reduce_scatter: exact sums, the order of the tree, epilogues, in place and not. */
#include <math.h>

#include "ranks.h"

enum { MAX_RANKS = 16 };

static const int rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 16};
static const int64_t sizes[] = {0, 1, 7, 1000, 4099};
static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16, TP_DTYPE_I32, TP_DTYPE_I64, TP_DTYPE_U8};
static const tp_reduce_op reduce_ops[] = {TP_REDUCE_SUM, TP_REDUCE_MAX, TP_REDUCE_MIN};

/* Rank r's element: small integers in floating dtypes, so that every order sums exactly, and any bits in integer ones,
 * so that sums wrap. */
static void fill(void *data, tp_dtype dtype, int64_t count, int rank)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = ((uint64_t)(i + 1) * 0x9e3779b97f4a7c15u) ^ ((uint64_t)(rank + 1) * 0xbf58476d1ce4e5b9u);
        bits ^= bits >> 29;
        bits *= 0x94d049bb133111ebu;
        int64_t integer = (int64_t)bits;
        int32_t low = (int32_t)(uint32_t)(bits >> 16);
        switch (dtype) {
        case TP_DTYPE_I64: memcpy((int64_t *)data + i, &integer, sizeof integer); break;
        case TP_DTYPE_I32: memcpy((int32_t *)data + i, &low, sizeof low); break;
        case TP_DTYPE_U8: ((uint8_t *)data)[i] = (uint8_t)(bits >> 16); break;
        default: tpt_set(data, dtype, i, (double)((bits >> 16) % 17) - 8.0); break;
        }
    }
}

static int64_t integer_of(const void *data, tp_dtype dtype, int64_t i)
{
    if (dtype == TP_DTYPE_I64)
        return ((const int64_t *)data)[i];
    return dtype == TP_DTYPE_I32 ? ((const int32_t *)data)[i] : ((const uint8_t *)data)[i];
}

static void combine_integer(void *into, const void *other, tp_dtype dtype, int64_t i, tp_reduce_op op)
{
    int64_t a = integer_of(into, dtype, i), b = integer_of(other, dtype, i);
    int64_t result = op == TP_REDUCE_SUM                ? (int64_t)((uint64_t)a + (uint64_t)b)
                     : (op == TP_REDUCE_MAX) == (a > b) ? a
                                                        : b;
    int32_t narrow = (int32_t)(uint32_t)result;
    if (dtype == TP_DTYPE_I64)
        memcpy((int64_t *)into + i, &result, sizeof result);
    else if (dtype == TP_DTYPE_I32)
        memcpy((int32_t *)into + i, &narrow, sizeof narrow);
    else
        ((uint8_t *)into)[i] = (uint8_t)result;
}

static void combine(void *into, const void *other, tp_dtype dtype, int64_t count, tp_reduce_op op)
{
    for (int64_t i = 0; i < count; i++) {
        if (!(tp_dtype_epsilon(dtype) > 0)) {
            combine_integer(into, other, dtype, i, op);
            continue;
        }
        double a = tpt_get(into, dtype, i), b = tpt_get(other, dtype, i);
        double larger = a > b ? a : b, smaller = a > b ? b : a;
        tpt_set(into, dtype, i, op == TP_REDUCE_SUM ? a + b : op == TP_REDUCE_MAX ? larger : smaller);
    }
}

/* What all ranks together must give. */
static void *expected_of(tp_dtype dtype, int64_t count, int ranks, tp_reduce_op op)
{
    void *sum = tpt_array(dtype, count), *other = tpt_array(dtype, count);
    fill(sum, dtype, count, 0);
    for (int rank = 1; rank < ranks; rank++) {
        fill(other, dtype, count, rank);
        combine(sum, other, dtype, count, op);
    }
    free(other);
    return sum;
}

typedef struct reduce_case {
    tp_dtype dtype;
    tp_reduce_op op;
    int64_t count;
    const void *want; /* the result over all ranks */
} reduce_case;

static tp_status all_reduce_exact(tp_ctx *ctx, const reduce_case *c, tp_all_reduce_algorithm algorithm, bool in_place)
{
    tp_comm *comm = tp_ctx_world(ctx);
    void *in = tpt_array(c->dtype, c->count), *out = in_place ? in : tpt_array(c->dtype, c->count);
    fill(in, c->dtype, c->count, tp_comm_rank(comm));
    const tp_reduce_desc desc = {.op = c->op, .algorithm = algorithm};
    tp_tensor from = tp_tensor_1d(in, c->dtype, c->count), to = tp_tensor_1d(out, c->dtype, c->count);
    TPI_TRY(tp_all_reduce(ctx, comm, from, to, &desc));
    CHECK(tpt_same_bits("all_reduce", out, c->want, c->dtype, c->count));
    if (!in_place)
        free(out);
    free(in);
    return TP_OK;
}

static tp_status reduce_scatter_exact(tp_ctx *ctx, const reduce_case *c, bool in_place, const int64_t *counts)
{
    enum { COLS = 3 };
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm), rank = tp_comm_rank(comm);
    int64_t rows = c->count / COLS, elements = rows * COLS;
    tp_range own = tp_shard_range(rows, size, rank);
    int64_t given[MAX_RANKS];
    if (counts) {
        /* Uneven: the last rank but one has nothing, the last has all that is left. */
        for (int i = 0; i < size; i++)
            given[i] = i < size - 2 ? rows / (2 * size) : 0;
        given[size - 1] = rows - (size > 2 ? (size - 2) * (rows / (2 * size)) : 0);
        own.begin = rank == size - 1 ? rows - given[rank] : rank * (rows / (2 * size));
        own.end = own.begin + given[rank];
        counts = given;
    }
    int64_t first = own.begin * COLS, length = (own.end - own.begin) * COLS;
    size_t item = tp_dtype_size(c->dtype);
    char *in = tpt_array(c->dtype, elements);
    fill(in, c->dtype, elements, rank);
    char *out = in_place ? in + (size_t)first * item : tpt_array(c->dtype, length);
    const tp_reduce_desc desc = {.op = c->op};
    TPI_TRY(tp_reduce_scatter(ctx, comm, tp_tensor_2d(in, c->dtype, rows, COLS),
                              tp_tensor_2d(out, c->dtype, own.end - own.begin, COLS), counts, &desc));
    CHECK(tpt_same_bits("reduce_scatter", out, (const char *)c->want + (size_t)first * item, c->dtype, length));
    if (!in_place)
        free(out);
    free(in);
    return TP_OK;
}

static tp_status exact_case(tp_ctx *ctx, const reduce_case *c)
{
    const int64_t marker[1] = {0};
    for (int algorithm = TP_ALL_REDUCE_AUTO; algorithm <= TP_ALL_REDUCE_TWO_SHOT; algorithm++) {
        TPI_TRY(all_reduce_exact(ctx, c, (tp_all_reduce_algorithm)algorithm, false));
        TPI_TRY(all_reduce_exact(ctx, c, (tp_all_reduce_algorithm)algorithm, true));
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        TPI_TRY(reduce_scatter_exact(ctx, c, in_place, NULL));
        TPI_TRY(reduce_scatter_exact(ctx, c, in_place, marker));
    }
    return TP_OK;
}

typedef tp_status (*case_fn)(tp_ctx *ctx, const reduce_case *c);

static tp_status with_result(tp_ctx *ctx, reduce_case c, case_fn fn)
{
    void *want = expected_of(c.dtype, c.count, tp_comm_size(tp_ctx_world(ctx)), c.op);
    c.want = want;
    tp_status status = fn(ctx, &c);
    free(want);
    return status;
}

static tp_status all_cases(tp_ctx *ctx, case_fn fn)
{
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        for (size_t o = 0; o < COUNT_OF(reduce_ops); o++)
            for (size_t n = 0; n < COUNT_OF(sizes); n++)
                TPI_TRY(with_result(ctx, (reduce_case){dtypes[d], reduce_ops[o], sizes[n], NULL}, fn));
    return TP_OK;
}

static tp_status exact_cases(tp_ctx *ctx, void *arg)
{
    (void)arg;
    return all_cases(ctx, exact_case);
}

Test(reduce, exact_for_all_dtypes_and_sizes)
{
    for (size_t i = 0; i < COUNT_OF(rank_counts); i++)
        tpt_run(rank_counts[i], exact_cases, NULL);
}

/* Larger than staging, so that stretches, slices and their borders are all met. */
static tp_status exact_large_case(tp_ctx *ctx, const reduce_case *c)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        TPI_TRY(all_reduce_exact(ctx, c, TP_ALL_REDUCE_ONE_SHOT, in_place));
        TPI_TRY(all_reduce_exact(ctx, c, TP_ALL_REDUCE_TWO_SHOT, in_place));
        TPI_TRY(reduce_scatter_exact(ctx, c, in_place, NULL));
    }
    return TP_OK;
}

static tp_status exact_large(tp_ctx *ctx, void *arg)
{
    (void)arg;
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        TPI_TRY(with_result(ctx, (reduce_case){dtypes[d], TP_REDUCE_SUM, 50021, NULL}, exact_large_case));
    return TP_OK;
}

Test(reduce, exact_beyond_staging)
{
    tpt_run(2, exact_large, NULL);
    tpt_run(5, exact_large, NULL);
}

/* ---- the order of the sum ---- */

/* Beyond staging, and no multiple of anything. */
enum { ORDER_COUNT = 9001 };

static void normals(float *out, int64_t count, int rank)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = tp_random_normal((tp_random_key){77, (uint64_t)rank}, (uint64_t)i);
}

/* Neighbours, then twice the distance: written apart from the library's. */
static float tree(const float *values, int count)
{
    float node[MAX_RANKS];
    memcpy(node, values, (size_t)count * sizeof *node);
    for (int left = count; left > 1; left = (left + 1) / 2)
        for (int i = 0; 2 * i < left; i++)
            node[i] = 2 * i + 1 < left ? node[2 * i] + node[2 * i + 1] : node[2 * i];
    return node[0];
}

static float *tree_sums(int64_t count, int ranks)
{
    float *all[MAX_RANKS], *sum = tpt_array(TP_DTYPE_F32, count);
    for (int rank = 0; rank < ranks; rank++) {
        all[rank] = tpt_array(TP_DTYPE_F32, count);
        normals(all[rank], count, rank);
    }
    for (int64_t i = 0; i < count; i++) {
        float values[MAX_RANKS];
        for (int rank = 0; rank < ranks; rank++)
            values[rank] = all[rank][i];
        sum[i] = tree(values, ranks);
    }
    for (int rank = 0; rank < ranks; rank++)
        free(all[rank]);
    return sum;
}

static tp_status order_of(tp_ctx *ctx, const float *sum, tp_dtype out_dtype, int64_t count)
{
    tp_comm *comm = tp_ctx_world(ctx);
    float *in = tpt_array(TP_DTYPE_F32, count);
    void *want = tpt_array(out_dtype, count), *out = tpt_array(out_dtype, count);
    normals(in, count, tp_comm_rank(comm));
    tpt_from_f32(want, out_dtype, sum, count);
    for (int algorithm = TP_ALL_REDUCE_ONE_SHOT; algorithm <= TP_ALL_REDUCE_TWO_SHOT; algorithm++) {
        const tp_reduce_desc desc = {.algorithm = (tp_all_reduce_algorithm)algorithm};
        memset(out, 0x7f, (size_t)count * tp_dtype_size(out_dtype));
        TPI_TRY(tp_all_reduce(ctx, comm, tp_tensor_1d(in, TP_DTYPE_F32, count), tp_tensor_1d(out, out_dtype, count),
                              &desc));
        CHECK(tpt_same_bits("order of all_reduce", out, want, out_dtype, count));
    }
    tp_range own = tp_shard_range(count, tp_comm_size(comm), tp_comm_rank(comm));
    TPI_TRY(tp_reduce_scatter(ctx, comm, tp_tensor_1d(in, TP_DTYPE_F32, count),
                              tp_tensor_1d(out, out_dtype, own.end - own.begin), NULL, NULL));
    CHECK(tpt_same_bits("order of reduce_scatter", out, (char *)want + (size_t)own.begin * tp_dtype_size(out_dtype),
                        out_dtype, own.end - own.begin));
    free(in);
    free(want);
    free(out);
    return TP_OK;
}

static tp_status order_cases(tp_ctx *ctx, void *arg)
{
    const float *sum = arg;
    const tp_dtype out_dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};
    for (size_t d = 0; d < COUNT_OF(out_dtypes); d++) {
        TPI_TRY(order_of(ctx, sum, out_dtypes[d], 4099));
        TPI_TRY(order_of(ctx, sum, out_dtypes[d], ORDER_COUNT));
    }
    return TP_OK;
}

Test(reduce, adds_in_the_order_of_the_tree)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        float *sum = tree_sums(ORDER_COUNT, ranks);
        tpt_run(ranks, order_cases, sum);
        free(sum);
    }
}

static tp_status ring_order(tp_ctx *ctx, void *arg)
{
    (void)arg;
    enum { COUNT = 20011, SLICE = 64 };
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm);
    float *all[MAX_RANKS], *want = tpt_array(TP_DTYPE_F32, COUNT), *out = tpt_array(TP_DTYPE_F32, COUNT);
    for (int rank = 0; rank < size; rank++) {
        all[rank] = tpt_array(TP_DTYPE_F32, COUNT);
        normals(all[rank], COUNT, rank);
    }
    for (int owner = 0; owner < size; owner++) {
        tp_range blocks = tp_shard_range((COUNT + SLICE - 1) / SLICE, size, owner);
        for (int64_t i = blocks.begin * SLICE; i < blocks.end * SLICE && i < COUNT; i++) {
            want[i] = all[(owner + 1) % size][i];
            for (int k = 2; k <= size; k++)
                want[i] += all[(owner + k) % size][i];
        }
    }
    const tp_reduce_desc desc = {.algorithm = TP_ALL_REDUCE_RING};
    TPI_TRY(tp_all_reduce(ctx, comm, tp_tensor_1d(all[tp_comm_rank(comm)], TP_DTYPE_F32, COUNT),
                          tp_tensor_1d(out, TP_DTYPE_F32, COUNT), &desc));
    CHECK(tpt_same_bits("ring", out, want, TP_DTYPE_F32, COUNT));
    for (int rank = 0; rank < size; rank++)
        free(all[rank]);
    free(want);
    free(out);
    return TP_OK;
}

static tp_status ring_exact_case(tp_ctx *ctx, const reduce_case *c)
{
    return all_reduce_exact(ctx, c, TP_ALL_REDUCE_RING, c->count % 2 == 0);
}

static tp_status ring_exact(tp_ctx *ctx, void *arg)
{
    (void)arg;
    return all_cases(ctx, ring_exact_case);
}

static tp_status ring_refused(tp_ctx *ctx, void *arg)
{
    (void)arg;
    float x = 1;
    const tp_reduce_desc desc = {.algorithm = TP_ALL_REDUCE_RING};
    tp_tensor tensor = tp_tensor_1d(&x, TP_DTYPE_F32, 1);
    CHECK(tp_all_reduce(ctx, tp_ctx_world(ctx), tensor, tensor, &desc) == TP_ERR_ARGUMENT);
    CHECK(strstr(tp_ctx_message(ctx), "TP_SUM_FAST"));
    return TP_OK;
}

Test(reduce, ring_only_where_fast_sums_are_allowed)
{
    for (int ranks = 1; ranks <= 5; ranks++) {
        tpt_run_with((tp_run_options){.ranks = ranks, .ctx.sum_order = TP_SUM_FAST}, ring_order, NULL);
        tpt_run_with((tp_run_options){.ranks = ranks, .ctx.sum_order = TP_SUM_FAST}, ring_exact, NULL);
    }
    tpt_run(3, ring_refused, NULL);
}

/* ---- NaN, and integers at their limits ---- */

static tp_status nan_wins(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm), rank = tp_comm_rank(comm);
    for (size_t d = 0; d < 3; d++)
        for (size_t o = 0; o < COUNT_OF(reduce_ops); o++)
            for (int bad = 0; bad < size; bad++) {
                uint64_t in[16] = {0}, out[16] = {0};
                for (int i = 0; i < 21; i++)
                    tpt_set(in, dtypes[d], i, rank == bad && i % 2 ? (double)NAN : i == 4 ? (double)-INFINITY : rank);
                const tp_reduce_desc desc = {.op = reduce_ops[o]};
                TPI_TRY(
                    tp_all_reduce(ctx, comm, tp_tensor_1d(in, dtypes[d], 21), tp_tensor_1d(out, dtypes[d], 21), &desc));
                for (int i = 0; i < 21; i++)
                    CHECK(isnan(tpt_get(out, dtypes[d], i)) == (i % 2 == 1));
            }
    return TP_OK;
}

Test(reduce, nan_wins_on_any_rank)
{
    tpt_run(1, nan_wins, NULL);
    tpt_run(2, nan_wins, NULL);
    tpt_run(7, nan_wins, NULL);
}

/* ---- epilogue ---- */

enum { ROWS = 37, COLS = 211 };

typedef struct epilogue {
    int64_t rows;
    bool bias, residual;
    float dropout;
    tp_dtype out_dtype;
} epilogue;

static const tp_random_key mask_key = {5, 99};

/* out = round(dropout(sum + bias) + residual), element by element. */
static void finish(const epilogue *e, const float *sum, const void *bias, const void *residual, void *out,
                   int64_t first_row)
{
    uint32_t threshold = tp_random_threshold(e->dropout);
    float scale = 1.0f / (1.0f - e->dropout);
    for (int64_t i = 0; i < e->rows * COLS; i++) {
        float x = sum[i];
        if (e->bias)
            x += (float)tpt_get(bias, e->out_dtype, i % COLS);
        if (e->dropout > 0)
            x = tp_random_u32(mask_key, (uint64_t)(first_row * COLS + i)) >= threshold ? x * scale : 0.0f;
        if (e->residual)
            x += (float)tpt_get(residual, e->out_dtype, i);
        tpt_from_f32((char *)out + (size_t)i * tp_dtype_size(e->out_dtype), e->out_dtype, &x, 1);
    }
}

static tp_status epilogue_case(tp_ctx *ctx, const epilogue *e, const float *sum)
{
    enum { FIRST_ROW = 1000 };
    tp_comm *comm = tp_ctx_world(ctx);
    int64_t count = e->rows * COLS;
    size_t item = tp_dtype_size(e->out_dtype);
    float *in = tpt_array(TP_DTYPE_F32, count);
    normals(in, count, tp_comm_rank(comm));
    void *bias = tpt_new_normal(e->out_dtype, COLS, 8, 1.0), *residual = tpt_new_normal(e->out_dtype, count, 9, 1.0);
    char *want = tpt_array(e->out_dtype, count), *out = tpt_array(e->out_dtype, count);
    finish(e, sum, bias, residual, want, FIRST_ROW);
    tp_reduce_desc desc = {.dropout = e->dropout, .dropout_key = mask_key, .first_row = FIRST_ROW};
    if (e->bias)
        desc.bias = tp_tensor_1d(bias, e->out_dtype, COLS);
    if (e->residual)
        desc.residual = tp_tensor_2d(residual, e->out_dtype, e->rows, COLS);
    for (int algorithm = TP_ALL_REDUCE_ONE_SHOT; algorithm <= TP_ALL_REDUCE_TWO_SHOT; algorithm++) {
        desc.algorithm = (tp_all_reduce_algorithm)algorithm;
        TPI_TRY(tp_all_reduce(ctx, comm, tp_tensor_2d(in, TP_DTYPE_F32, e->rows, COLS),
                              tp_tensor_2d(out, e->out_dtype, e->rows, COLS), &desc));
        CHECK(tpt_same_bits("epilogue of all_reduce", out, want, e->out_dtype, count));
    }
    tp_range own = tp_shard_range(e->rows, tp_comm_size(comm), tp_comm_rank(comm));
    int64_t rows = own.end - own.begin;
    desc.first_row = FIRST_ROW + own.begin;
    if (e->residual)
        desc.residual = tp_tensor_2d((char *)residual + (size_t)(own.begin * COLS) * item, e->out_dtype, rows, COLS);
    TPI_TRY(tp_reduce_scatter(ctx, comm, tp_tensor_2d(in, TP_DTYPE_F32, e->rows, COLS),
                              tp_tensor_2d(out, e->out_dtype, rows, COLS), NULL, &desc));
    CHECK(tpt_same_bits("epilogue of reduce_scatter", out, want + (size_t)(own.begin * COLS) * item, e->out_dtype,
                        rows * COLS));
    free(in);
    free(bias);
    free(residual);
    free(want);
    free(out);
    return TP_OK;
}

static tp_status epilogue_cases(tp_ctx *ctx, void *arg)
{
    for (int parts = 0; parts < 16; parts++) /* of many rows and of few */
        for (size_t d = 0; d < 3; d++) {
            const epilogue e = {parts & 8 ? 3 : ROWS, parts & 1, parts & 2, parts & 4 ? 0.25f : 0, dtypes[d]};
            TPI_TRY(epilogue_case(ctx, &e, arg));
        }
    return TP_OK;
}

Test(reduce, epilogue_is_applied_to_the_sum_once)
{
    const int counts[] = {1, 2, 3, 8};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        float *sum = tree_sums(ROWS * COLS, counts[i]);
        tpt_run(counts[i], epilogue_cases, sum);
        free(sum);
    }
}

/* out may be the residual itself: x += f(x). */
static tp_status residual_in_place(tp_ctx *ctx, void *arg)
{
    (void)arg;
    int64_t count = ROWS * COLS;
    tp_comm *comm = tp_ctx_world(ctx);
    for (int algorithm = TP_ALL_REDUCE_ONE_SHOT; algorithm <= TP_ALL_REDUCE_TWO_SHOT; algorithm++) {
        const epilogue e = {.rows = ROWS, .residual = true, .out_dtype = TP_DTYPE_F32};
        float *sum = tree_sums(count, tp_comm_size(comm)), *in = tpt_array(TP_DTYPE_F32, count),
              *want = tpt_array(TP_DTYPE_F32, count);
        void *x = tpt_new_normal(TP_DTYPE_F32, count, 9, 1.0);
        normals(in, count, tp_comm_rank(comm));
        finish(&e, sum, NULL, x, want, 0);
        tp_tensor to = tp_tensor_2d(x, TP_DTYPE_F32, ROWS, COLS);
        const tp_reduce_desc desc = {.algorithm = (tp_all_reduce_algorithm)algorithm, .residual = to};
        TPI_TRY(tp_all_reduce(ctx, comm, tp_tensor_2d(in, TP_DTYPE_F32, ROWS, COLS), to, &desc));
        CHECK(tpt_same_bits("residual in place", x, want, TP_DTYPE_F32, count));
        free(sum);
        free(in);
        free(want);
        free(x);
    }
    return TP_OK;
}

Test(reduce, residual_may_be_out)
{
    tpt_run(1, residual_in_place, NULL);
    tpt_run(4, residual_in_place, NULL);
}
