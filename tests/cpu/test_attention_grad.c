/* The gradient of attention against its definition in double precision, that definition against finite differences, and
 * equal bits. */
#include "attention_case.h"

static const attention_case cases[] = {
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 64, .lengths = {130, -1}, .causal = true},
    {.dtype = TP_DTYPE_F32,
     .heads = 3,
     .head_dim = 20,
     .lengths = {0, 67, 1, 5, -1},
     .kv_heads = 2,
     .kv_of_head = {0, 0, 1},
     .slots = 2,
     .slot_of_head = {0, 0, 1}},
    {.dtype = TP_DTYPE_F32,
     .heads = 4,
     .head_dim = 16,
     .lengths = {65, 2, -1},
     .causal = true,
     .slots = 4,
     .slot_of_head = {0, 0, 2, 2}},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 1, .lengths = {33, 1, -1}},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 200, .lengths = {37, -1}, .causal = true},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {200, 7, -1}, .causal = true, .window = 1},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {200, 7, -1}, .causal = true, .window = 65},
    /* Of a sequence one pair is not seen; the first key of a window begins a strip or a tile, the last ends one. */
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {70, -1}, .window = 69},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {70, -1}, .causal = true, .window = 69},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {150, -1}, .window = 66},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {150, -1}, .causal = true, .window = 18},
    /* Of a whole tile one pair is not seen. */
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {200, -1}, .causal = true, .window = 127},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {200, 7, -1}, .window = 70},
    {.dtype = TP_DTYPE_F32, .heads = 2, .head_dim = 24, .lengths = {97, 30, -1}, .causal = true, .dropout = 0.3f},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 16, .lengths = {130, -1}, .window = 40, .dropout = 0.9f},
    {.dtype = TP_DTYPE_BF16, .weights = TP_DTYPE_BF16, .heads = 2, .head_dim = 64, .lengths = {100, 1, -1},
     .causal = true, .kv_heads = 1},
    {.dtype = TP_DTYPE_BF16, .weights = TP_DTYPE_BF16, .heads = 1, .head_dim = 37, .lengths = {66, 3, -1},
     .dropout = 0.1f},
    {.dtype = TP_DTYPE_F16, .heads = 2, .head_dim = 80, .lengths = {70, 17, -1}, .causal = true, .window = 20},
};

#define CASES (sizeof cases / sizeof *cases)

static const attention_case rich[] = {
    {.dtype = TP_DTYPE_F32,
     .heads = 4,
     .head_dim = 40,
     .lengths = {150, 0, 1, 64, 33, -1},
     .causal = true,
     .kv_heads = 2,
     .kv_of_head = {0, 0, 1, 1},
     .slots = 2,
     .slot_of_head = {0, 0, 1, 1},
     .dropout = 0.2f},
    {.dtype = TP_DTYPE_BF16, .weights = TP_DTYPE_BF16, .heads = 3, .head_dim = 64, .lengths = {190, -1}, .kv_heads = 1,
     .window = 90},
};

Test(attention_grad, agrees_with_the_definition)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    for (size_t i = 0; i < CASES; i++) {
        attention_data *data = case_create(&cases[i], 10 * i);
        attention_reference reference = reference_create(data);
        const tp_dtype dtype = cases[i].dtype;
        const int64_t rows = data->args.forward.rows, wide = cases[i].heads * cases[i].head_dim;
        const int64_t elements = data->shape.slots * rows * cases[i].head_dim;
        case_forward(ctx, data);
        case_backward(ctx, data);
        reference_run(data, &reference);
        void *dq = tpt_array(dtype, rows * wide);
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < wide + CASE_PADDING; c++) {
                const double value = tpt_get(data->dq, dtype, r * (wide + CASE_PADDING) + c);
                if (c < wide) {
                    tpt_set(dq, dtype, r * wide + c, value);
                } else {
                    cr_assert(isnan(value), "case %zu: row %ld was written past its end", i, (long)r);
                }
            }
        }
        cr_assert(tpt_close_each("dq", dq, dtype, reference.dq, reference.bound_dq, rows * wide), "case %zu", i);
        cr_assert(tpt_close_each("dk", data->dk, TP_DTYPE_F32, reference.dk, reference.bound_dk, elements), "case %zu",
                  i);
        cr_assert(tpt_close_each("dv", data->dv, TP_DTYPE_F32, reference.dv, reference.bound_dv, elements), "case %zu",
                  i);
        free(dq);
        reference_destroy(&reference);
        case_destroy(data);
    }
    tp_ctx_destroy(ctx);
}

static double loss_of(const attention_data *data, attention_reference *reference)
{
    double loss = 0;
    reference_run(data, reference);
    for (int64_t i = 0; i < data->args.forward.rows * data->shape.heads * data->shape.head_dim; i++) {
        loss += reference->dout[i] * reference->out[i];
    }
    return loss;
}

/* Central differences of the definition: error of about step^2 and of rounding / step. */
static void check_differences(const attention_data *data, attention_reference *reference, double *values,
                              const double *gradient, int64_t count)
{
    const double step = 1e-5;
    double *want = tpt_allocate((size_t)count * sizeof *want);
    (void)loss_of(data, reference);
    memcpy(want, gradient, (size_t)count * sizeof *want);
    for (int64_t i = 0; i < count; i++) {
        const double kept = values[i];
        values[i] = kept + step;
        const double above = loss_of(data, reference);
        values[i] = kept - step;
        const double below = loss_of(data, reference);
        values[i] = kept;
        cr_assert_float_eq((above - below) / (2 * step), want[i], 1e-8, "element %ld", (long)i);
    }
    free(want);
}

Test(attention_grad, the_definition_agrees_with_finite_differences)
{
    const attention_case shape = {.dtype = TP_DTYPE_F32,
                                  .heads = 2,
                                  .head_dim = 3,
                                  .lengths = {5, 1, 3, -1},
                                  .causal = true,
                                  .window = 3,
                                  .dropout = 0.25f};
    attention_data *data = case_create(&shape, 4);
    attention_reference reference = reference_create(data);
    check_differences(data, &reference, reference.q, reference.dq, 9 * 2 * 3);
    check_differences(data, &reference, reference.k, reference.dk, 9 * 3);
    check_differences(data, &reference, reference.v, reference.dv, 9 * 3);
    reference_destroy(&reference);
    case_destroy(data);
}

/* With three threads and few slots the work is cut into two passes: the bits are those of one. */
Test(attention_grad, bits_do_not_depend_on_instruction_set_or_threads)
{
    case_same_everywhere(rich, sizeof rich / sizeof *rich, true);
}

/* Two ranks, two heads each, of the first rich case. */
Test(attention_grad, heads_may_be_split_over_calls)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 2);
    attention_data *whole = case_create(&rich[0], 3), *parts = case_create(&rich[0], 3);
    const tpi_attention_grad_args all = parts->args;
    const int64_t head_dim = all.forward.head_dim, elements = all.forward.rows * head_dim;
    case_forward(ctx, whole);
    case_backward(ctx, whole);
    case_forward(ctx, parts);
    case_poison(parts->dq, all.forward.dtype, all.forward.rows * all.dq_stride);
    for (int64_t half = 0; half < 2; half++) {
        static const int32_t zeros[2];
        const int64_t column = half * 2 * head_dim;
        tpi_attention_grad_args part = all;
        part.forward.heads = 2;
        part.forward.kv_heads = 1;
        part.forward.q = (const float *)all.forward.q + column;
        part.forward.k = (const float *)all.forward.k + half * head_dim;
        part.forward.v = (const float *)all.forward.v + half * head_dim;
        part.forward.out = (float *)all.forward.out + column;
        part.forward.lse = all.forward.lse + half * 2 * all.forward.rows;
        part.forward.kv_of_head = zeros;
        part.forward.first_head = all.forward.first_head + half * 2;
        part.dout = (const float *)all.dout + column;
        part.dq = (float *)all.dq + column;
        part.slots = 1;
        part.slot_of_head = zeros;
        part.dk = all.dk + half * elements;
        part.dv = all.dv + half * elements;
        cr_assert_eq(tpi_cpu_table_of(ctx)->attention_grad(ctx, &part), TP_OK);
    }
    cr_assert(case_same_backward(parts, whole));
    case_destroy(whole);
    case_destroy(parts);
    tp_ctx_destroy(ctx);
}

/* The last sequence of the first rich case alone. */
Test(attention_grad, sequences_do_not_see_each_other)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    attention_data *packed = case_create(&rich[0], 3), *single = case_create(&rich[0], 3);
    const tpi_attention_grad_args all = single->args;
    const int64_t first = packed->offsets[4], rows = packed->offsets[5] - first, head_dim = all.forward.head_dim;
    case_forward(ctx, packed);
    case_backward(ctx, packed);
    tpi_attention_grad_args one = all;
    one.forward.rows = rows;
    one.forward.q = (const float *)all.forward.q + first * all.forward.q_stride;
    one.forward.k = (const float *)all.forward.k + first * all.forward.k_stride;
    one.forward.v = (const float *)all.forward.v + first * all.forward.v_stride;
    one.forward.offsets = NULL;
    one.forward.sequences = 1;
    one.forward.first_token = all.forward.first_token + first;
    one.dout = (const float *)all.dout + first * all.dout_stride;
    cr_assert_eq(tpi_cpu_table_of(ctx)->attention(ctx, &one.forward), TP_OK);
    cr_assert_eq(tpi_cpu_table_of(ctx)->attention_grad(ctx, &one), TP_OK);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t slot = 0; slot < 2; slot++) {
            const int64_t from = (slot * rows + r) * head_dim, to = (slot * all.forward.rows + first + r) * head_dim;
            cr_assert(tpt_same_bits("dk", all.dk + from, packed->dk + to, TP_DTYPE_F32, head_dim), "row %ld", (long)r);
            cr_assert(tpt_same_bits("dv", all.dv + from, packed->dv + to, TP_DTYPE_F32, head_dim), "row %ld", (long)r);
        }
        cr_assert(tpt_same_bits("dq", (float *)all.dq + r * all.dq_stride,
                                (float *)packed->dq + (first + r) * all.dq_stride, TP_DTYPE_F32, 4 * head_dim),
                  "row %ld", (long)r);
    }
    case_destroy(packed);
    case_destroy(single);
    tp_ctx_destroy(ctx);
}

Test(attention_grad, a_window_past_the_sequence_is_no_window)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    attention_data *want = case_create(&rich[0], 11), *got = case_create(&rich[0], 11);
    case_forward(ctx, want);
    case_backward(ctx, want);
    got->args.forward.window = INT64_MAX;
    case_forward(ctx, got);
    case_backward(ctx, got);
    cr_assert(case_same_backward(got, want));
    case_destroy(want);
    case_destroy(got);
    tp_ctx_destroy(ctx);
}

/* Rows whose every score is -inf get and give no gradient. */
Test(attention_grad, a_row_that_sees_nothing_has_no_gradient)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    const attention_case shape = {
        .dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 4, .lengths = {90, -1}, .causal = true};
    attention_data *data = case_create(&shape, 1);
    for (int64_t r = 0; r < 90; r++) {
        for (int64_t d = 0; d < 4; d++) {
            tpt_set(data->q, TP_DTYPE_F32, r * data->args.forward.q_stride + d, 0x1p100);
            tpt_set(data->k, TP_DTYPE_F32, r * data->args.forward.k_stride + d, r < 70 ? -0x1p100 : 0);
        }
    }
    case_forward(ctx, data);
    case_backward(ctx, data);
    for (int64_t i = 0; i < 90 * 4; i++) {
        const float dq = ((float *)data->dq)[i / 4 * data->args.dq_stride + i % 4];
        cr_assert(i / 4 < 70 ? dq == 0 : isfinite(dq), "dq of row %ld: %g", (long)i / 4, (double)dq);
        cr_assert(i / 4 < 70 ? data->dk[i] == 0 && data->dv[i] == 0 : isfinite(data->dk[i]) && data->dv[i] != 0,
                  "row %ld", (long)i / 4);
    }
    case_destroy(data);
    tp_ctx_destroy(ctx);
}

/* A probability that is subnormal and rounds to the smallest normal bf16, which instructions that flush would lose: as
 * the first and as the second key of a pair, of every query. */
Test(attention_grad, weights_that_round_to_the_smallest_normal)
{
    const attention_case shape = {.dtype = TP_DTYPE_BF16, .heads = 1, .head_dim = 2, .lengths = {4, -1}};
    attention_data *data[2];
    for (int i = 0; i < 2; i++) {
        data[i] = case_create(&shape, 1);
        data[i]->args.forward.scale = 87.3375f / 87.5f; /* e^-87.3375 is 2^-126 less a thousandth */
        for (int64_t r = 0; r < 4; r++) {
            const bool small = r > 0;
            for (int64_t d = 0; d < 2; d++) {
                tpt_set(data[i]->q, TP_DTYPE_BF16, r * data[i]->args.forward.q_stride + d, d == 0);
                tpt_set(data[i]->k, TP_DTYPE_BF16, r * data[i]->args.forward.k_stride + d, small && d == 0 ? -87.5 : 0);
                tpt_set(data[i]->v, TP_DTYPE_BF16, r * data[i]->args.forward.v_stride + d, small ? 0x1p126 : 0);
                tpt_set(data[i]->dout, TP_DTYPE_BF16, r * data[i]->args.dout_stride + d, 0x1p120);
            }
        }
    }
    for (tp_isa isa = TP_ISA_PORTABLE; isa <= TP_ISA_AVX512_BF16; isa++) {
        if (!tp_isa_available(isa)) {
            continue;
        }
        attention_data *own = data[isa != TP_ISA_PORTABLE];
        tp_ctx *ctx = case_context(isa, 1);
        case_forward(ctx, own);
        case_backward(ctx, own);
        tp_ctx_destroy(ctx);
        cr_assert(case_same_forward(own, data[0]) && case_same_backward(own, data[0]), "%s", tp_isa_name(isa));
        for (int64_t r = 0; r < 4; r++) { /* three keys of weight 2^-126 and value 2^126, one of weight 1 and value 0 */
            cr_assert_eq(tpt_get(own->out, TP_DTYPE_BF16, r * own->args.forward.out_stride), 3, "%s, row %ld",
                         tp_isa_name(isa), (long)r);
        }
        for (int64_t i = 2; i < 8; i++) { /* of four queries, each with weight 2^-126 and gradient 2^120 */
            cr_assert_eq(own->dv[i], 0x1p-4f, "%s: %g", tp_isa_name(isa), (double)own->dv[i]);
        }
    }
    case_destroy(data[0]);
    case_destroy(data[1]);
}
