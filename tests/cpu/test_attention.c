/* Attention forward against its definition in double precision, and its promises of equal bits. */
#include "attention_case.h"

static const attention_case cases[] = {
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 64, .lengths = {130, -1}, .causal = true},
    {.dtype = TP_DTYPE_F32,
     .heads = 2,
     .head_dim = 16,
     .lengths = {64, 65, 1, 0, 2, 63, -1},
     .causal = true,
     .kv_heads = 2,
     .kv_of_head = {0, 1}},
    {.dtype = TP_DTYPE_F32,
     .heads = 3,
     .head_dim = 20,
     .lengths = {0, 67, 0, 5, -1},
     .kv_heads = 2,
     .kv_of_head = {0, 0, 1}},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 1, .lengths = {33, 1, -1}},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 256, .lengths = {37, -1}, .causal = true},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 129, .lengths = {70, -1}, .causal = true, .window = 3},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {300, 7, -1}, .causal = true, .window = 1},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {300, 7, -1}, .causal = true, .window = 65},
    /* Of a sequence one pair is not seen; the first key of a window begins a strip or a tile, the last ends one. */
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {70, -1}, .window = 69},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {70, -1}, .causal = true, .window = 69},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {150, -1}, .window = 66},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {150, -1}, .causal = true, .window = 18},
    /* Of a whole tile one pair is not seen. */
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {200, -1}, .causal = true, .window = 127},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {300, 7, -1}, .window = 1},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 8, .lengths = {300, 7, -1}, .window = 70},
    {.dtype = TP_DTYPE_F32, .heads = 2, .head_dim = 24, .lengths = {97, 30, -1}, .causal = true, .dropout = 0.3f},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 16, .lengths = {130, -1}, .window = 40, .dropout = 0.9f},
    {.dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 32, .lengths = {80, -1}, .causal = true, .deviation = 4},
    {.dtype = TP_DTYPE_BF16, .weights = TP_DTYPE_BF16, .heads = 2, .head_dim = 64, .lengths = {100, 1, -1},
     .causal = true, .kv_heads = 1},
    {.dtype = TP_DTYPE_BF16, .weights = TP_DTYPE_BF16, .heads = 1, .head_dim = 37, .lengths = {66, 3, -1},
     .dropout = 0.1f},
    {.dtype = TP_DTYPE_F16, .heads = 2, .head_dim = 80, .lengths = {70, 17, -1}, .causal = true, .window = 20},
    {.dtype = TP_DTYPE_F16, .heads = 1, .head_dim = 6, .lengths = {20, -1}},
};

#define CASES (sizeof cases / sizeof *cases)

/* Two cases that have everything, for comparisons of bits. */
static const attention_case rich[] = {
    {.dtype = TP_DTYPE_F32,
     .heads = 4,
     .head_dim = 40,
     .lengths = {150, 0, 1, 64, 33, -1},
     .causal = true,
     .kv_heads = 2,
     .kv_of_head = {0, 0, 1, 1},
     .dropout = 0.2f},
    {.dtype = TP_DTYPE_BF16, .weights = TP_DTYPE_BF16,
     .heads = 3,
     .head_dim = 64,
     .lengths = {190, 17, -1},
     .kv_heads = 2,
     .kv_of_head = {0, 1, 1},
     .window = 90},
};

Test(attention, agrees_with_the_definition)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    for (size_t i = 0; i < CASES; i++) {
        attention_data *data = case_create(&cases[i], 10 * i);
        attention_reference reference = reference_create(data);
        const int64_t rows = data->args.forward.rows, wide = cases[i].heads * cases[i].head_dim;
        case_forward(ctx, data);
        reference_run(data, &reference);
        void *out = tpt_array(cases[i].dtype, rows * wide);
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < wide + CASE_PADDING; c++) {
                const double value = tpt_get(data->out, cases[i].dtype, r * (wide + CASE_PADDING) + c);
                if (c < wide) {
                    tpt_set(out, cases[i].dtype, r * wide + c, value);
                } else {
                    cr_assert(isnan(value), "case %zu: row %ld was written past its end", i, (long)r);
                }
            }
        }
        cr_assert(tpt_close_each("out", out, cases[i].dtype, reference.out, reference.bound_out, rows * wide),
                  "case %zu", i);
        cr_assert(
            tpt_close_each("lse", data->lse, TP_DTYPE_F32, reference.lse, reference.bound_lse, rows * cases[i].heads),
            "case %zu", i);
        free(out);
        reference_destroy(&reference);
        case_destroy(data);
    }
    tp_ctx_destroy(ctx);
}

Test(attention, bits_do_not_depend_on_instruction_set_or_threads)
{
    case_same_everywhere(rich, sizeof rich / sizeof *rich, false);
}

/* A rank of a tensor-parallel group holds some heads; its results are those of the same heads of one rank. */
Test(attention, heads_may_be_split_over_calls)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 2);
    for (size_t i = 0; i < sizeof rich / sizeof *rich; i++) {
        attention_data *whole = case_create(&rich[i], 3), *parts = case_create(&rich[i], 3);
        const tpi_attention_args all = parts->args.forward;
        case_forward(ctx, whole);
        case_poison(parts->out, all.dtype, all.rows * all.out_stride);
        for (int64_t begin = 0, heads = 1; begin < all.heads; begin += heads, heads++) {
            heads = begin + heads > all.heads ? all.heads - begin : heads;
            tpi_attention_args part = all;
            part.heads = heads;
            part.q = (char *)parts->q + (size_t)(begin * all.head_dim) * tp_dtype_size(all.dtype);
            part.out = (char *)parts->out + (size_t)(begin * all.head_dim) * tp_dtype_size(all.dtype);
            part.kv_of_head = all.kv_of_head + begin;
            part.lse = all.lse + begin * all.rows;
            part.first_head = all.first_head + begin;
            cr_assert_eq(tpi_cpu_table_of(ctx)->attention(ctx, &part), TP_OK);
        }
        cr_assert(case_same_forward(parts, whole), "case %zu", i);
        case_destroy(whole);
        case_destroy(parts);
    }
    tp_ctx_destroy(ctx);
}

/* A sequence alone gives what it gives among others. */
Test(attention, sequences_do_not_see_each_other)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    for (size_t i = 0; i < sizeof rich / sizeof *rich; i++) {
        attention_data *packed = case_create(&rich[i], 5), *single = case_create(&rich[i], 5);
        const tpi_attention_args all = single->args.forward;
        case_forward(ctx, packed);
        case_poison(single->out, all.dtype, all.rows * all.out_stride);
        for (int64_t s = 0; s < all.sequences; s++) {
            const int64_t first = single->offsets[s];
            const size_t size = tp_dtype_size(all.dtype);
            float *lse = tpt_array(TP_DTYPE_F32, all.heads * all.rows);
            tpi_attention_args one = all;
            one.rows = single->offsets[s + 1] - first;
            one.q = (char *)single->q + (size_t)(first * all.q_stride) * size;
            one.k = (char *)single->k + (size_t)(first * all.k_stride) * size;
            one.v = (char *)single->v + (size_t)(first * all.v_stride) * size;
            one.out = (char *)single->out + (size_t)(first * all.out_stride) * size;
            one.offsets = NULL;
            one.sequences = s % 2;
            one.first_token = all.first_token + first;
            one.lse = lse;
            cr_assert_eq(tpi_cpu_table_of(ctx)->attention(ctx, &one), TP_OK);
            for (int64_t h = 0; h < all.heads; h++) {
                memcpy(all.lse + h * all.rows + first, lse + h * one.rows, (size_t)one.rows * sizeof(float));
            }
            free(lse);
        }
        cr_assert(case_same_forward(single, packed), "case %zu", i);
        case_destroy(packed);
        case_destroy(single);
    }
    tp_ctx_destroy(ctx);
}

Test(attention, equal_lengths_need_no_offsets)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    const attention_case shape = {
        .dtype = TP_DTYPE_F32, .heads = 2, .head_dim = 16, .lengths = {70, 70, 70, -1}, .causal = true};
    attention_data *with = case_create(&shape, 5), *without = case_create(&shape, 5);
    case_forward(ctx, with);
    without->args.forward.offsets = NULL;
    case_forward(ctx, without);
    cr_assert(case_same_forward(with, without));
    /* lse is optional, and out is the same. */
    float *lse = without->args.forward.lse;
    without->args.forward.lse = NULL;
    case_forward(ctx, without);
    memcpy(lse, with->lse, (size_t)(shape.heads * 210) * sizeof(float));
    cr_assert(case_same_forward(with, without));
    case_destroy(with);
    case_destroy(without);
    tp_ctx_destroy(ctx);
}

Test(attention, a_window_past_the_sequence_is_no_window)
{
    static const int64_t windows[] = {150, 151, (int64_t)1 << 40, INT64_MAX};
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    for (int causal = 0; causal < 2; causal++) {
        attention_case shape = rich[0];
        shape.causal = causal;
        attention_data *want = case_create(&shape, 11), *got = case_create(&shape, 11);
        case_forward(ctx, want);
        for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
            got->args.forward.window = windows[i];
            case_forward(ctx, got);
            cr_assert(case_same_forward(got, want), "window %ld", (long)windows[i]);
        }
        case_destroy(want);
        case_destroy(got);
    }
    tp_ctx_destroy(ctx);
}

/* Scores of -inf are as good as a mask: a row that has nothing else gives 0 and -inf, and no NaN. */
Test(attention, a_row_that_sees_nothing_gives_zero)
{
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16};
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    for (size_t i = 0; i < 2; i++) {
        const attention_case shape = {
            .dtype = dtypes[i], .heads = 1, .head_dim = 4, .lengths = {90, -1}, .causal = true};
        attention_data *data = case_create(&shape, 1);
        for (int64_t r = 0; r < 90; r++) {
            for (int64_t d = 0; d < 4; d++) {
                tpt_set(data->q, dtypes[i], r * data->args.forward.q_stride + d, 0x1p100);
                tpt_set(data->k, dtypes[i], r * data->args.forward.k_stride + d, r < 70 ? -0x1p100 : 0);
            }
        }
        case_forward(ctx, data);
        for (int64_t r = 0; r < 90; r++) {
            for (int64_t d = 0; d < 4; d++) {
                const double out = tpt_get(data->out, dtypes[i], r * data->args.forward.out_stride + d);
                cr_assert(r < 70 ? out == 0 : isfinite(out) && out != 0, "row %ld: %g", (long)r, out);
            }
            cr_assert(r < 70 ? data->lse[r] == -INFINITY : isfinite(data->lse[r]), "row %ld: lse %g", (long)r,
                      (double)data->lse[r]);
        }
        case_destroy(data);
    }
    tp_ctx_destroy(ctx);
}

/* A NaN reaches the rows that see it, and only those. */
Test(attention, nan_spreads_to_its_readers_only)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 1);
    const attention_case shape = {
        .dtype = TP_DTYPE_F32, .heads = 1, .head_dim = 16, .lengths = {200, -1}, .causal = true};
    attention_data *data = case_create(&shape, 1);
    tpt_set(data->q, TP_DTYPE_F32, 20 * data->args.forward.q_stride + 3, NAN);
    tpt_set(data->k, TP_DTYPE_F32, 150 * data->args.forward.k_stride + 3, NAN);
    case_forward(ctx, data);
    for (int64_t r = 0; r < 200; r++) {
        const bool hit = r == 20 || r >= 150;
        for (int64_t d = 0; d < 16; d++) {
            cr_assert_eq(isnan(((float *)data->out)[r * data->args.forward.out_stride + d]), hit, "row %ld", (long)r);
        }
    }
    case_destroy(data);
    tp_ctx_destroy(ctx);
}

Test(attention, no_rows_is_fine)
{
    tp_ctx *ctx = case_context(TP_ISA_AUTO, 2);
    const attention_case empty[] = {{.dtype = TP_DTYPE_F32, .heads = 2, .head_dim = 16, .lengths = {-1}},
                                    {.dtype = TP_DTYPE_F32, .heads = 2, .head_dim = 16, .lengths = {0, 0, -1}}};
    for (size_t i = 0; i < 2; i++) {
        attention_data *data = case_create(&empty[i], 1);
        case_forward(ctx, data);
        case_backward(ctx, data);
        case_destroy(data);
    }
    tp_ctx_destroy(ctx);
}
