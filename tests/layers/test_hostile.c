/* Tensors, passes and memory that do not fit: refused before anything is written, and sizes that cannot be are told,
 * not wrapped. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "support/data.h"

enum { TOKENS = 6, HIDDEN = 16, BYTES = 1 << 16 };

typedef struct fixture {
    tp_ctx *ctx;
    tp_block *block;
    char *memory[4]; /* x, y, saved, dy */
    tp_io io;
    tp_pass pass;
    tp_block_saved saved;
} fixture;

static fixture make(void)
{
    static const tp_block_desc desc = {.name = "block",
                                       .hidden = HIDDEN,
                                       .dtype = TP_DTYPE_F32,
                                       .attention = {.heads = 4, .kv_heads = 2},
                                       .mlp = {.ffn = 24}};
    fixture f = {.pass = {.tokens = TOKENS, .sequences = 2}};
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &f.ctx), TP_OK);
    cr_assert_eq(tp_block_create(f.ctx, &desc, &f.block), TP_OK, "%s", tp_last_message());
    for (int i = 0; i < 4; i++)
        f.memory[i] = tpt_allocate(BYTES);
    f.io.in = tp_tensor_2d(f.memory[0], TP_DTYPE_F32, TOKENS, HIDDEN);
    f.io.out = tp_tensor_2d(f.memory[1], TP_DTYPE_F32, TOKENS, HIDDEN);
    f.saved = (tp_block_saved){.memory = f.memory[2], .bytes = tp_block_saved_bytes(f.block, &f.pass)};
    return f;
}

static void drop(fixture *f)
{
    for (int i = 0; i < 4; i++)
        free(f->memory[i]);
    tp_block_destroy(f->block);
    tp_ctx_destroy(f->ctx);
}

/* The forward of what `f` holds is refused, naming `part`, and leaves output and context as they were. */
static void check_refused(fixture *f, const char *part)
{
    memset(f->memory[1], 0x3c, BYTES);
    tp_status status = tp_block_forward(f->ctx, f->block, &f->pass, &f->io, &f->saved);
    cr_expect(status == TP_ERR_ARGUMENT || status == TP_ERR_SHAPE || status == TP_ERR_DTYPE, "%s: %s: %s", part,
              tp_status_name(status), tp_last_message());
    cr_expect_not_null(strstr(tp_last_message(), part), "%s, but: %s", part, tp_last_message());
    cr_expect_eq(tp_ctx_failure(f->ctx), TP_OK);
    for (int i = 0; i < BYTES; i++)
        cr_assert_eq(f->memory[1][i], 0x3c, "%s: byte %d of the output was written", part, i);
    fixture whole = *f;
    whole.io = (tp_io){.in = tp_tensor_2d(f->memory[0], TP_DTYPE_F32, TOKENS, HIDDEN),
                       .out = tp_tensor_2d(f->memory[1], TP_DTYPE_F32, TOKENS, HIDDEN)};
    whole.pass = (tp_pass){.tokens = TOKENS, .sequences = 2};
    whole.saved = (tp_block_saved){.memory = f->memory[2], .bytes = BYTES};
    cr_assert_eq(tp_block_forward(f->ctx, f->block, &whole.pass, &whole.io, &whole.saved), TP_OK, "after %s: %s", part,
                 tp_last_message());
}

Test(hostile, tensors)
{
    fixture f = make();
    const tp_io good = f.io;
    f.io.in.dtype = f.io.out.dtype = TP_DTYPE_BF16;
    check_refused(&f, "bf16");
    f.io = good;
    f.io.in.dtype = (tp_dtype)77;
    check_refused(&f, "invalid");
    f.io = good;
    f.io.out.dtype = TP_DTYPE_I32;
    check_refused(&f, "i32");
    f.io = good;
    f.io.in.dims = 3;
    check_refused(&f, "3 dims");
    f.io = good;
    f.io.out.shape[0] = -TOKENS;
    check_refused(&f, "-6");
    f.io = good;
    f.io.in.shape[1] = INT64_MAX;
    check_refused(&f, "9223372036854775807");
    f.io = good;
    f.io.in.stride[0] = HIDDEN - 1;
    check_refused(&f, "stride 15");
    f.io = good;
    f.io.out.stride[1] = 2;
    check_refused(&f, "stride");
    f.io = good;
    f.io.in.data = f.memory[0] + 2;
    check_refused(&f, "not aligned");
    f.io = good;
    f.io.out.data = f.memory[1] + 1;
    check_refused(&f, "not aligned");
    f.io = good;
    f.io.out.data = NULL;
    check_refused(&f, "no memory");
    drop(&f);
}

/* A forward over its own input would spoil it. */
static void check_apart(const fixture *f, const char *name, tp_status status)
{
    cr_assert_eq(status, TP_ERR_ARGUMENT, "%s: %s", name, tp_status_name(status));
    cr_assert(strstr(tp_ctx_message(f->ctx), name) != NULL && strstr(tp_ctx_message(f->ctx), "the same memory") != NULL,
              "%s: %s", name, tp_ctx_message(f->ctx));
    cr_assert_eq(tp_ctx_failure(f->ctx), TP_OK);
    for (int i = 0; i < BYTES; i++)
        cr_assert_eq(f->memory[0][i], 0x3c, "%s: byte %d of the input was written", name, i);
}

Test(hostile, outputs_over_inputs)
{
    fixture f = make();
    tp_linear *linear;
    tp_mlp *mlp;
    tp_attention *attention;
    tp_linear_desc square = {.name = "square", .in_features = HIDDEN, .out_features = HIDDEN, .dtype = TP_DTYPE_F32};
    tp_mlp_desc wide = {.name = "wide", .hidden = HIDDEN, .ffn = 24, .dtype = TP_DTYPE_F32};
    tp_attention_desc heads = {.name = "heads", .hidden = HIDDEN, .heads = 4, .dtype = TP_DTYPE_F32};
    cr_assert_eq(tp_linear_create(f.ctx, &square, &linear), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_mlp_create(f.ctx, &wide, &mlp), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_attention_create(f.ctx, &heads, &attention), TP_OK, "%s", tp_last_message());
    memset(f.memory[0], 0x3c, BYTES);
    f.io.out = f.io.in;
    check_apart(&f, "square", tp_linear_forward(f.ctx, linear, &f.pass, &f.io, NULL));
    check_apart(&f, "wide", tp_mlp_forward(f.ctx, mlp, &f.pass, &f.io, NULL));
    check_apart(&f, "heads", tp_attention_forward(f.ctx, attention, &f.pass, &f.io, NULL));
    check_apart(&f, "block", tp_block_forward(f.ctx, f.block, &f.pass, &f.io, &f.saved));
    tp_linear_destroy(linear);
    tp_mlp_destroy(mlp);
    tp_attention_destroy(attention);
    drop(&f);
}

Test(hostile, passes)
{
    static const int64_t falling[] = {0, 5, 3, 6}, late[] = {1, 6}, early[] = {0, 5}, past[] = {0, INT64_MAX};
    fixture f = make();
    f.pass = (tp_pass){.tokens = TOKENS, .sequences = 3, .offsets = falling};
    check_refused(&f, "offsets[2] is 3");
    f.pass = (tp_pass){.tokens = TOKENS, .sequences = 1, .offsets = late};
    check_refused(&f, "offsets[0] is 1");
    f.pass = (tp_pass){.tokens = TOKENS, .sequences = 1, .offsets = early};
    check_refused(&f, "offset is 5");
    f.pass = (tp_pass){.tokens = TOKENS, .sequences = 1, .offsets = past};
    check_refused(&f, "9223372036854775807");
    f.pass = (tp_pass){.tokens = TOKENS, .sequences = 4};
    check_refused(&f, "sequences 4");
    f.pass = (tp_pass){.tokens = -1};
    check_refused(&f, "-1");
    f.pass = (tp_pass){.tokens = TOKENS, .sequences = -2};
    check_refused(&f, "-2");
    f.pass = (tp_pass){.tokens = INT64_MAX};
    check_refused(&f, "9223372036854775807");
    drop(&f);
}

Test(hostile, saved_memory)
{
    fixture f = make();
    size_t bytes = f.saved.bytes;
    char text[32];
    snprintf(text, sizeof text, "%zu needed", bytes);
    f.saved.bytes = bytes - 1;
    check_refused(&f, text);
    f.saved = (tp_block_saved){.memory = NULL, .bytes = bytes};
    check_refused(&f, text);
    f.saved = (tp_block_saved){.memory = f.memory[2] + 4, .bytes = bytes};
    check_refused(&f, "not aligned to 64");
    /* A backward with what another pass has saved. */
    f.saved = (tp_block_saved){.memory = f.memory[2], .bytes = BYTES};
    tp_pass shorter = {.tokens = 2};
    tp_io less = {.in = tp_tensor_rows(f.io.in, 0, 2), .out = tp_tensor_rows(f.io.out, 0, 2)};
    cr_assert_eq(tp_block_forward(f.ctx, f.block, &shorter, &less, &f.saved), TP_OK);
    tp_io back = {.in = tp_tensor_2d(f.memory[3], TP_DTYPE_F32, TOKENS, HIDDEN), .out = f.io.out};
    tp_status status = tp_block_backward(f.ctx, f.block, &f.pass, &back, &f.saved);
    cr_assert(status == TP_ERR_SHAPE || status == TP_ERR_ARGUMENT, "%s: %s", tp_status_name(status), tp_last_message());
    drop(&f);
}

Test(hostile, sizes_that_cannot_be)
{
    fixture f = make();
    tp_mlp *mlp;
    tp_attention *attention;
    tp_norm *norm;
    cr_assert_eq(
        tp_mlp_create(f.ctx, &(tp_mlp_desc){.name = "m", .hidden = HIDDEN, .ffn = 24, .dtype = TP_DTYPE_F32}, &mlp),
        TP_OK);
    cr_assert_eq(
        tp_attention_create(
            f.ctx, &(tp_attention_desc){.name = "a", .hidden = HIDDEN, .heads = 4, .dtype = TP_DTYPE_F32}, &attention),
        TP_OK);
    cr_assert_eq(tp_norm_create(f.ctx, &(tp_norm_desc){.name = "n", .features = HIDDEN, .dtype = TP_DTYPE_F32}, &norm),
                 TP_OK);
    static const tp_model_desc desc = {.family = TP_MODEL_GPT2,
                                       .layers = 2,
                                       .hidden = HIDDEN,
                                       .heads = 4,
                                       .vocabulary = 50,
                                       .positions = 8,
                                       .dtype = TP_DTYPE_F32};
    tp_model *model;
    cr_assert_eq(tp_model_create(f.ctx, &desc, &model), TP_OK);
    for (int shift = 58; shift <= 62; shift++) {
        tp_pass pass = {.tokens = INT64_C(1) << shift};
        cr_expect_eq(tp_model_saved_bytes(model, &pass), SIZE_MAX);
        cr_expect_eq(tp_block_saved_bytes(f.block, &pass), SIZE_MAX);
        cr_expect_eq(tp_mlp_saved_bytes(mlp, &pass), SIZE_MAX);
        cr_expect_eq(tp_attention_saved_bytes(attention, &pass), SIZE_MAX);
        cr_expect(shift < 61 || tp_norm_saved_bytes(norm, &pass) == SIZE_MAX);
        cr_expect(shift < 60 || tp_cross_entropy_saved_bytes(&pass) == SIZE_MAX);
    }
    tp_pass large = {.tokens = INT64_C(1) << 40}; /* large, but it can be */
    cr_assert_gt(tp_model_saved_bytes(model, &large), (size_t)1 << 46);
    cr_assert_lt(tp_model_saved_bytes(model, &large), (size_t)1 << 56);
    tp_model_destroy(model);
    tp_norm_destroy(norm);
    tp_attention_destroy(attention);
    tp_mlp_destroy(mlp);
    drop(&f);
}

/* Of every layer, by number: field of initial values, what creates it. */
static tp_status create_with(tp_ctx *ctx, int field, float std, void **out)
{
    const tp_linear_desc linear = {.in_features = 4, .out_features = 4, .dtype = TP_DTYPE_F32, .init_std = std};
    const tp_mlp_desc mlp = {.hidden = 4, .ffn = 8, .dtype = TP_DTYPE_F32, .down_init_std = std};
    const tp_attention_desc attention = {.hidden = 4, .heads = 2, .kv_heads = 2, .dtype = TP_DTYPE_F32,
                                         .proj_init_std = std};
    const tp_embedding_desc embedding = {.vocabulary = 5, .features = 4, .dtype = TP_DTYPE_F32, .init_std = std};
    tp_embedding_desc positions = embedding;
    positions.init_std = 0;
    positions.position_init_std = std;
    switch (field) {
    case 0: return tp_linear_create(ctx, &linear, (tp_linear **)out);
    case 1: return tp_mlp_create(ctx, &mlp, (tp_mlp **)out);
    case 2: return tp_attention_create(ctx, &attention, (tp_attention **)out);
    case 3: return tp_embedding_create(ctx, &embedding, (tp_embedding **)out);
    default: return tp_embedding_create(ctx, &positions, (tp_embedding **)out);
    }
}

Test(hostile, spreads_of_initial_values)
{
    static const char *const fields[] = {" init_std", "down_init_std", "proj_init_std", " init_std",
                                         "position_init_std"};
    static const float spreads[] = {-1, NAN, -INFINITY};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK, "%s", tp_last_message());
    for (int field = 0; field < 5; field++)
        for (int i = 0; i < 3; i++) {
            void *layer = &layer;
            cr_assert_eq(create_with(ctx, field, spreads[i], &layer), TP_ERR_ARGUMENT, "%s %g", fields[field],
                         (double)spreads[i]);
            cr_assert_null(layer);
            cr_assert_not_null(strstr(tp_ctx_message(ctx), fields[field]), "%s", tp_ctx_message(ctx));
        }
    tp_ctx_destroy(ctx);
}

Test(hostile, no_layer_has_no_parameters)
{
    tp_param *param[1];
    cr_expect_eq(tp_linear_params(NULL, param, 1), 0);
    cr_expect_eq(tp_mlp_params(NULL, param, 1), 0);
    cr_expect_eq(tp_attention_params(NULL, param, 1), 0);
    cr_expect_eq(tp_norm_params(NULL, param, 1), 0);
    cr_expect_eq(tp_embedding_params(NULL, param, 1), 0);
    cr_expect_eq(tp_block_params(NULL, param, 1), 0);
}
