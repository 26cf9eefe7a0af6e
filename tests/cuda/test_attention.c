/* Attention on the GPU: its definition in double precision, and its promises of equal bits. */
#include "cpu/attention_case.h"
#include "cuda/cuda_support.h"

/* One array of a case in device memory. */
typedef struct device_matrix {
    void *host, *device;
    tp_dtype dtype;
    int64_t rows, stride, device_stride;
} device_matrix;

static size_t device_bytes(const device_matrix *x)
{
    return (size_t)(x->rows * x->device_stride) * tp_dtype_size(x->dtype);
}

/* aligned: rows begin at multiples of 16 bytes. What lies between them is not a number. */
static device_matrix to_device(tp_ctx *ctx, device_matrix x, bool aligned)
{
    size_t size = tp_dtype_size(x.dtype);

    x.device_stride = aligned ? (x.stride + 7) / 8 * 8 : x.stride;
    char *copy = tpt_array(x.dtype, x.rows * x.device_stride);
    case_poison(copy, x.dtype, x.rows * x.device_stride);
    for (int64_t r = 0; r < x.rows; r++)
        memcpy(copy + (size_t)(r * x.device_stride) * size, (char *)x.host + (size_t)(r * x.stride) * size,
               (size_t)x.stride * size);
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, device_bytes(&x), &x.device), TP_OK);
    cr_assert_eq(tp_ctx_upload(ctx, x.device, copy, device_bytes(&x)), TP_OK);
    free(copy);
    return x;
}

static void from_device(tp_ctx *ctx, device_matrix *x)
{
    size_t size = tp_dtype_size(x->dtype);
    char *copy = tpt_array(x->dtype, x->rows * x->device_stride);

    cr_assert_eq(tp_ctx_download(ctx, copy, x->device, device_bytes(x)), TP_OK, "%s", tp_ctx_message(ctx));
    for (int64_t r = 0; r < x->rows; r++)
        memcpy((char *)x->host + (size_t)(r * x->stride) * size, copy + (size_t)(r * x->device_stride) * size,
               (size_t)x->stride * size);
    free(copy);
}

enum { Q, K, V, DOUT, OUT, LSE, DQ, DK, DV, ARRAYS };

/* Of the arrays whose rows may begin anywhere. */
static const unsigned all_aligned = 1 << Q | 1 << K | 1 << V | 1 << DOUT | 1 << OUT | 1 << DQ;

/* Poisons all results, runs forward and backward on the GPU, and brings the results back. aligned: bits of the arrays
 * that are. */
static void run_case(tp_ctx *ctx, attention_data *data, unsigned aligned)
{
    const attention_case *shape = &data->shape;
    const tpi_attention_args host = data->args.forward;
    const int64_t rows = host.rows, wide = host.q_stride, narrow = host.k_stride, key_rows = shape->slots * rows;
    device_matrix x[ARRAYS] = {[Q] = {data->q, NULL, shape->dtype, rows, wide, 0},
                               [K] = {data->k, NULL, shape->dtype, rows, narrow, 0},
                               [V] = {data->v, NULL, shape->dtype, rows, narrow, 0},
                               [DOUT] = {data->dout, NULL, shape->dtype, rows, wide, 0},
                               [OUT] = {data->out, NULL, shape->dtype, rows, wide, 0},
                               [LSE] = {data->lse, NULL, TP_DTYPE_F32, shape->heads, rows, 0},
                               [DQ] = {data->dq, NULL, shape->dtype, rows, wide, 0},
                               [DK] = {data->dk, NULL, TP_DTYPE_F32, key_rows, shape->head_dim, 0},
                               [DV] = {data->dv, NULL, TP_DTYPE_F32, key_rows, shape->head_dim, 0}};

    for (int i = 0; i < ARRAYS; i++) {
        if (i >= OUT)
            case_poison(x[i].host, x[i].dtype, x[i].rows * x[i].stride);
        x[i] = to_device(ctx, x[i], aligned >> i & 1);
    }
    tpi_attention_grad_args args = data->args;
    tpi_attention_args *forward = &args.forward;
    forward->q = x[Q].device;
    forward->k = x[K].device;
    forward->v = x[V].device;
    forward->out = x[OUT].device;
    forward->lse = x[LSE].device;
    forward->q_stride = x[Q].device_stride;
    forward->k_stride = x[K].device_stride;
    forward->v_stride = x[V].device_stride;
    forward->out_stride = x[OUT].device_stride;
    args.dout_stride = x[DOUT].device_stride;
    args.dq_stride = x[DQ].device_stride;
    args.dout = x[DOUT].device;
    args.dq = x[DQ].device;
    args.dk = x[DK].device;
    args.dv = x[DV].device;
    cr_assert_eq(tpi_attention(ctx->compute, forward), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tpi_attention_grad(ctx->compute, &args), TP_OK, "%s", tp_ctx_message(ctx));
    for (int i = 0; i < ARRAYS; i++) {
        if (i >= OUT)
            from_device(ctx, &x[i]);
        tp_ctx_release(ctx, TP_MEMORY_OTHER, x[i].device, device_bytes(&x[i]));
    }
}

/* All 16-bit types take tensor cores, and f32 chains; head dimensions are padded to 64, 128 and 256. */
static const attention_case cases[] = {
    {.heads = 1, .head_dim = 64, .lengths = {130, -1}, .causal = true},
    {.heads = 2,
     .head_dim = 16,
     .lengths = {64, 65, 1, 0, 2, 63, -1},
     .causal = true,
     .kv_heads = 2,
     .kv_of_head = {0, 1},
     .slots = 2,
     .slot_of_head = {0, 1}},
    {.heads = 3,
     .head_dim = 20,
     .lengths = {0, 67, 0, 5, -1},
     .kv_heads = 2,
     .kv_of_head = {0, 0, 1},
     .slots = 2,
     .slot_of_head = {0, 0, 1}},
    {.heads = 1, .head_dim = 1, .lengths = {33, 1, -1}},
    {.heads = 1, .head_dim = 256, .lengths = {37, -1}, .causal = true},
    {.heads = 1, .head_dim = 136, .lengths = {70, -1}, .causal = true, .window = 3},
    {.heads = 1, .head_dim = 8, .lengths = {140, 7, -1}, .causal = true, .window = 1},
    {.heads = 1, .head_dim = 8, .lengths = {140, 7, -1}, .causal = true, .window = 65},
    /* One less than a tile of keys: the first key of a tile is just outside. */
    {.heads = 1, .head_dim = 8, .lengths = {140, -1}, .causal = true, .window = 31},
    {.heads = 1, .head_dim = 8, .lengths = {140, -1}, .causal = true, .window = 63},
    {.heads = 1, .head_dim = 8, .lengths = {140, -1}, .window = 63},
    {.heads = 1, .head_dim = 8, .lengths = {140, 7, -1}, .window = 1},
    {.heads = 1, .head_dim = 8, .lengths = {140, 7, -1}, .window = 70},
    {.heads = 2, .head_dim = 24, .lengths = {97, 30, -1}, .causal = true, .dropout = 0.3f},
    {.heads = 2,
     .head_dim = 80,
     .lengths = {70, 17, -1},
     .window = 40,
     .dropout = 0.9f,
     .slots = 2,
     .slot_of_head = {0, 1}},
    {.heads = 1, .head_dim = 32, .lengths = {80, -1}, .causal = true, .deviation = 4},
    {.heads = 2, .head_dim = 128, .lengths = {66, 3, -1}, .causal = true, .dropout = 0.1f},
    {.heads = 1, .head_dim = 37, .lengths = {66, 3, -1}},
};

#define CASES (sizeof cases / sizeof *cases)

static void *dense(const attention_data *data, const void *from, const char *what)
{
    const int64_t rows = data->args.forward.rows, stride = data->args.forward.q_stride, wide = stride - CASE_PADDING;
    void *to = tpt_array(data->shape.dtype, rows * wide);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < stride; c++) {
            double value = tpt_get(from, data->shape.dtype, r * stride + c);

            if (c < wide)
                tpt_set(to, data->shape.dtype, r * wide + c, value);
            else
                cr_assert(isnan(value), "%s: row %ld was written past its end", what, (long)r);
        }
    return to;
}

static void check_results(const attention_data *data, size_t number)
{
    const attention_case *shape = &data->shape;
    const int64_t rows = data->args.forward.rows, wide = shape->heads * shape->head_dim;
    const int64_t keys = shape->slots * rows * shape->head_dim;
    attention_reference r = reference_create(data);
    void *out = dense(data, data->out, "out"), *dq = dense(data, data->dq, "dq");

    reference_run(data, &r);
    cr_assert(tpt_close_each("out", out, shape->dtype, r.out, r.bound_out, rows * wide), "case %zu", number);
    cr_assert(tpt_close_each("lse", data->lse, TP_DTYPE_F32, r.lse, r.bound_lse, rows * shape->heads), "case %zu",
              number);
    cr_assert(tpt_close_each("dq", dq, shape->dtype, r.dq, r.bound_dq, rows * wide), "case %zu", number);
    cr_assert(tpt_close_each("dk", data->dk, TP_DTYPE_F32, r.dk, r.bound_dk, keys), "case %zu", number);
    cr_assert(tpt_close_each("dv", data->dv, TP_DTYPE_F32, r.dv, r.bound_dv, keys), "case %zu", number);
    free(out);
    free(dq);
    reference_destroy(&r);
}

static void check_dtype(tp_dtype dtype)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t i = 0; i < CASES; i++) {
        attention_case shape = cases[i];

        shape.dtype = shape.weights = dtype;
        attention_data *data = case_create(&shape, 10 * i);
        run_case(sides.ctx[TPT_GPU], data, i % 3 != 2 ? all_aligned : 0);
        check_results(data, i);
        case_destroy(data);
    }
    tpt_sides_close(&sides);
}

Test(cuda_attention, f32_agrees_with_the_definition)
{
    check_dtype(TP_DTYPE_F32);
}

Test(cuda_attention, bf16_agrees_with_the_definition)
{
    check_dtype(TP_DTYPE_BF16);
}

Test(cuda_attention, f16_agrees_with_the_definition)
{
    check_dtype(TP_DTYPE_F16);
}

/* ---- equal bits ---- */

static attention_case rich(tp_dtype dtype)
{
    return (attention_case){.dtype = dtype,
                            .heads = 4,
                            .head_dim = 40,
                            .lengths = {80, 0, 1, 64, 33, -1},
                            .causal = true,
                            .kv_heads = 2,
                            .kv_of_head = {0, 0, 1, 1},
                            .slots = 2,
                            .slot_of_head = {0, 0, 1, 1},
                            .dropout = 0.2f};
}

/* Columns of a head of one array, as they lie. */
static bool same_columns(const char *what, const attention_data *whole, const void *a, int64_t first_a,
                         const attention_data *part, const void *b, int64_t cols)
{
    const tp_dtype dtype = whole->shape.dtype;
    const size_t size = tp_dtype_size(dtype);

    for (int64_t r = 0; r < whole->args.forward.rows; r++)
        if (!tpt_same_bits(what, (const char *)b + (size_t)(r * part->args.forward.q_stride) * size,
                           (const char *)a + (size_t)(r * whole->args.forward.q_stride + first_a) * size, dtype, cols))
            return false;
    return true;
}

/* Copies columns of `from` to the start of the rows of `to`. */
static void copy_columns(void *to, int64_t to_stride, const void *from, int64_t from_stride, const int64_t shape[2],
                         size_t size)
{
    for (int64_t r = 0; r < shape[0]; r++)
        memcpy((char *)to + (size_t)(r * to_stride) * size, (const char *)from + (size_t)(r * from_stride) * size,
               (size_t)shape[1] * size);
}

/* A rank of a tensor-parallel group holds some heads; its results are those of the same heads of one rank. */
Test(cuda_attention, heads_may_be_split_over_ranks)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        attention_case shape = rich(tpt_floats[d]), half = shape;
        attention_data *whole = case_create(&shape, 3);
        half.heads = 2;
        half.kv_heads = half.slots = 1;
        memset(half.kv_of_head, 0, sizeof half.kv_of_head);
        memset(half.slot_of_head, 0, sizeof half.slot_of_head);
        run_case(sides.ctx[TPT_GPU], whole, all_aligned);
        for (int64_t rank = 0; rank < 2; rank++) {
            attention_data *part = case_create(&half, 4);
            const tpi_attention_args *all = &whole->args.forward;
            const int64_t rows = all->rows, cols = 2 * shape.head_dim, size = (int64_t)tp_dtype_size(shape.dtype);
            const int64_t wide[2] = {rows, cols}, narrow[2] = {rows, shape.head_dim}, keys = rows * shape.head_dim;

            copy_columns(part->q, part->args.forward.q_stride, (char *)whole->q + rank * cols * size, all->q_stride,
                         wide, (size_t)size);
            copy_columns(part->dout, part->args.dout_stride, (char *)whole->dout + rank * cols * size, all->q_stride,
                         wide, (size_t)size);
            copy_columns(part->k, part->args.forward.k_stride, (char *)whole->k + rank * shape.head_dim * size,
                         all->k_stride, narrow, (size_t)size);
            copy_columns(part->v, part->args.forward.v_stride, (char *)whole->v + rank * shape.head_dim * size,
                         all->v_stride, narrow, (size_t)size);
            part->args.forward.first_head = all->first_head + 2 * rank;
            part->args.forward.total_heads = all->total_heads;
            run_case(sides.ctx[TPT_GPU], part, 0);
            cr_assert(same_columns("out", whole, whole->out, rank * cols, part, part->out, cols));
            cr_assert(same_columns("dq", whole, whole->dq, rank * cols, part, part->dq, cols));
            cr_assert(tpt_same_bits("lse", part->lse, whole->lse + 2 * rank * rows, TP_DTYPE_F32, 2 * rows));
            cr_assert(tpt_same_bits("dk", part->dk, whole->dk + rank * keys, TP_DTYPE_F32, keys));
            cr_assert(tpt_same_bits("dv", part->dv, whole->dv + rank * keys, TP_DTYPE_F32, keys));
            case_destroy(part);
        }
        case_destroy(whole);
    }
    tpt_sides_close(&sides);
}

/* More sequences than fit into a kernel's arguments, by offsets and by their number alone; and a second run. */
Test(cuda_attention, offsets_and_equal_lengths_give_the_same_bits)
{
    enum { SEQUENCES = 70, LENGTH = 3 };
    static int64_t offsets[SEQUENCES + 1];
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int i = 0; i <= SEQUENCES; i++)
        offsets[i] = i * LENGTH;
    for (int d = 0; d < 3; d++) {
        attention_case shape = {.dtype = tpt_floats[d], .heads = 1, .head_dim = 8, .lengths = {SEQUENCES * LENGTH, -1}};
        attention_data *data[3];

        for (int i = 0; i < 3; i++) {
            data[i] = case_create(&shape, 5);
            data[i]->args.forward.offsets = i == 0 ? NULL : offsets;
            data[i]->args.forward.sequences = SEQUENCES;
            run_case(sides.ctx[TPT_GPU], data[i], all_aligned);
        }
        for (int i = 1; i < 3; i++) {
            cr_assert(case_same_forward(data[i], data[0]));
            cr_assert(case_same_backward(data[i], data[0]));
        }
        for (int i = 0; i < 3; i++)
            case_destroy(data[i]);
    }
    tpt_sides_close(&sides);
}

/* One array whose rows begin anywhere is enough for the slow way. */
Test(cuda_attention, each_array_may_be_unaligned)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        attention_case shape = {.dtype = tpt_floats[d], .heads = 2, .head_dim = 8, .lengths = {19, -1}};
        attention_data *expected = case_create(&shape, 6);

        run_case(sides.ctx[TPT_GPU], expected, all_aligned);
        for (int i = 0; i < ARRAYS; i++) {
            if (!(all_aligned >> i & 1))
                continue;
            attention_data *data = case_create(&shape, 6);
            run_case(sides.ctx[TPT_GPU], data, all_aligned & ~(1u << i));
            cr_assert(case_same_forward(data, expected), "array %d", i);
            cr_assert(case_same_backward(data, expected), "array %d", i);
            case_destroy(data);
        }
        case_destroy(expected);
    }
    tpt_sides_close(&sides);
}

/* More heads than fit into a kernel's arguments: each as if it were alone. */
Test(cuda_attention, many_heads)
{
    enum { HEADS = 130, ROWS = 2, DIM = 4 };
    static int32_t kv_of_head[HEADS], slot_of_head[HEADS];
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int i = 0; i < HEADS; i++)
        kv_of_head[i] = slot_of_head[i] = i;
    tpt_pair q = tpt_pair_normal(&sides, TP_DTYPE_F32, ROWS * HEADS * DIM, 1, 1),
             k = tpt_pair_normal(&sides, TP_DTYPE_F32, ROWS * HEADS * DIM, 2, 1),
             out = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, ROWS * HEADS * DIM),
             dq = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, ROWS * HEADS * DIM),
             dk = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, ROWS * HEADS * DIM),
             dv = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, ROWS * HEADS * DIM),
             lse = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, ROWS * HEADS);
    for (int side = 0; side < TPT_SIDES; side++) {
        tpi_attention_grad_args args = {.forward = {.rows = ROWS,
                                                    .heads = HEADS,
                                                    .kv_heads = HEADS,
                                                    .head_dim = DIM,
                                                    .dtype = TP_DTYPE_F32,
                                                    .q = q.at[side],
                                                    .k = k.at[side],
                                                    .v = k.at[side],
                                                    .q_stride = HEADS * DIM,
                                                    .k_stride = HEADS * DIM,
                                                    .v_stride = HEADS * DIM,
                                                    .out = out.at[side],
                                                    .out_stride = HEADS * DIM,
                                                    .lse = (float *)lse.at[side],
                                                    .kv_of_head = kv_of_head,
                                                    .scale = 0.5f,
                                                    .causal = true},
                                        .dout = q.at[side],
                                        .dout_stride = HEADS * DIM,
                                        .dq = dq.at[side],
                                        .dq_stride = HEADS * DIM,
                                        .slots = HEADS,
                                        .slot_of_head = slot_of_head,
                                        .dk = (float *)dk.at[side],
                                        .dv = (float *)dv.at[side]};

        TPT_ISSUE(&sides, side, tpi_attention, &args.forward);
        TPT_ISSUE(&sides, side, tpi_attention_grad, &args);
    }
    /* Normal values stay below 6, so dP below 6 * 6 * DIM, and a gradient below that times another. */
    double tolerance = tpt_tolerance_chain(TP_DTYPE_F32, DIM + ROWS, 4, 6.0 * 6 * DIM * 6);
    tpt_pair_near(&sides, "out", &out, TP_DTYPE_F32, tpt_tolerance_chain(TP_DTYPE_F32, DIM + ROWS, 4, 6.0 * 6 * DIM));
    tpt_pair_near(&sides, "dq", &dq, TP_DTYPE_F32, tolerance);
    tpt_pair_near(&sides, "dk", &dk, TP_DTYPE_F32, tolerance);
    tpt_pair_near(&sides, "dv", &dv, TP_DTYPE_F32, tolerance);
    tpt_sides_close(&sides);
}

/* Nothing to attend with, and heads that there are no kernels for. */
Test(cuda_attention, nothing_and_too_much)
{
    tpt_sides sides;
    int32_t kv_of_head[1] = {0};
    tpi_attention_args args = {
        .heads = 1, .kv_heads = 1, .head_dim = 8, .dtype = TP_DTYPE_BF16, .kv_of_head = kv_of_head};

    tpt_sides_open(&sides);
    TPT_ISSUE(&sides, TPT_GPU, tpi_attention, &args);
    tpt_pair memory = tpt_pair_normal(&sides, TP_DTYPE_BF16, 257, 1, 1);
    args.rows = 1;
    args.head_dim = 257;
    args.q = args.k = args.v = args.out = memory.at[TPT_GPU];
    args.q_stride = args.k_stride = args.v_stride = args.out_stride = 257;
    cr_assert_eq(tpi_attention(sides.ctx[TPT_GPU]->compute, &args), TP_ERR_UNSUPPORTED);
    cr_assert_eq(tp_ctx_failure(sides.ctx[TPT_GPU]), TP_OK);
    tpt_sides_close(&sides);
}
