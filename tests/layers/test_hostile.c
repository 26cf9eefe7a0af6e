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

/* A call that would write over what it or a later one still reads. */
static void check_apart(const fixture *f, const char *name, tp_status status)
{
    cr_assert_eq(status, TP_ERR_ARGUMENT, "%s: %s", name, tp_status_name(status));
    cr_assert(strstr(tp_ctx_message(f->ctx), name) != NULL && strstr(tp_ctx_message(f->ctx), "overlap") != NULL,
              "%s: %s", name, tp_ctx_message(f->ctx));
    cr_assert_eq(tp_ctx_failure(f->ctx), TP_OK);
    for (int i = 0; i < BYTES; i++)
        cr_assert_eq(f->memory[0][i], 0x3c, "%s: byte %d of the input was written", name, i);
}

/* One of each layer, [hidden] to [hidden], and what they save. */
typedef struct layers {
    tp_linear *linear;
    tp_mlp *mlp;
    tp_attention *attention;
    tp_norm *norm;
    tp_linear_saved linear_saved;
    tp_mlp_saved mlp_saved;
    tp_attention_saved attention_saved;
    tp_norm_saved norm_saved;
} layers;

static layers make_layers(const fixture *f)
{
    static const tp_linear_desc square = {.name = "square", .kind = TP_LINEAR_ROW, .in_features = HIDDEN,
                                          .out_features = HIDDEN, .dtype = TP_DTYPE_F32};
    static const tp_mlp_desc wide = {.name = "wide", .hidden = HIDDEN, .ffn = 24, .dtype = TP_DTYPE_F32};
    static const tp_attention_desc heads = {.name = "heads", .hidden = HIDDEN, .heads = 4, .dtype = TP_DTYPE_F32};
    static const tp_norm_desc row = {.name = "row", .features = HIDDEN, .dtype = TP_DTYPE_F32};
    layers l = {0};
    cr_assert_eq(tp_linear_create(f->ctx, &square, &l.linear), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_mlp_create(f->ctx, &wide, &l.mlp), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_attention_create(f->ctx, &heads, &l.attention), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_norm_create(f->ctx, &row, &l.norm), TP_OK, "%s", tp_last_message());
    l.mlp_saved.bytes = tp_mlp_saved_bytes(l.mlp, &f->pass);
    l.mlp_saved.memory = tpt_allocate(l.mlp_saved.bytes);
    l.attention_saved.bytes = tp_attention_saved_bytes(l.attention, &f->pass);
    l.attention_saved.memory = tpt_allocate(l.attention_saved.bytes);
    l.norm_saved.bytes = tp_norm_saved_bytes(l.norm, &f->pass);
    l.norm_saved.memory = tpt_allocate(l.norm_saved.bytes);
    return l;
}

static void drop_layers(layers *l)
{
    free(l->mlp_saved.memory);
    free(l->attention_saved.memory);
    free(l->norm_saved.memory);
    tp_linear_destroy(l->linear);
    tp_mlp_destroy(l->mlp);
    tp_attention_destroy(l->attention);
    tp_norm_destroy(l->norm);
}

static void check_forwards(fixture *f, layers *l)
{
    check_apart(f, "square", tp_linear_forward(f->ctx, l->linear, &f->pass, &f->io, &l->linear_saved));
    check_apart(f, "wide", tp_mlp_forward(f->ctx, l->mlp, &f->pass, &f->io, &l->mlp_saved));
    check_apart(f, "heads", tp_attention_forward(f->ctx, l->attention, &f->pass, &f->io, &l->attention_saved));
}

Test(hostile, outputs_over_inputs)
{
    fixture f = make();
    layers l = make_layers(&f);
    memset(f.memory[0], 0x3c, BYTES);
    f.io.out = f.io.in;
    for (int away = -1; away <= 1; away++) { /* rows, and a part of one */
        f.io.in.data = f.memory[0] + 2 * HIDDEN * sizeof(float);
        f.io.out.data = (char *)f.io.in.data + away * 3 * (int)sizeof(float);
        check_forwards(&f, &l);
        check_apart(&f, "row", tp_norm_forward(f.ctx, l.norm, &f.pass, &f.io, &l.norm_saved));
        check_apart(&f, "block", tp_block_forward(f.ctx, f.block, &f.pass, &f.io, &f.saved));
    }
    f.io.out.data = (char *)f.io.in.data + HIDDEN * sizeof(float);
    check_forwards(&f, &l);
    /* Of the residual only the output's very place may be written. */
    f.io.in = tp_tensor_2d(f.memory[3], TP_DTYPE_F32, TOKENS, HIDDEN);
    f.io.residual = f.io.out;
    f.io.residual.data = (char *)f.io.out.data + sizeof(float);
    check_forwards(&f, &l);
    f.io.residual = tp_tensor_none();
    /* Columns of one matrix lie apart. */
    tp_tensor both = tp_tensor_2d(f.memory[3], TP_DTYPE_F32, TOKENS, 2 * HIDDEN);
    f.io = (tp_io){.in = tp_tensor_cols(both, 0, HIDDEN), .out = tp_tensor_cols(both, HIDDEN, 2 * HIDDEN)};
    cr_expect_eq(tp_mlp_forward(f.ctx, l.mlp, &f.pass, &f.io, NULL), TP_OK, "%s", tp_last_message());
    f.io.out = tp_tensor_cols(both, HIDDEN - 1, 2 * HIDDEN - 1);
    check_apart(&f, "wide", tp_mlp_forward(f.ctx, l.mlp, &f.pass, &f.io, NULL));
    drop_layers(&l);
    drop(&f);
}

/* The weight gradient still reads what an input gradient in its place would overwrite. */
Test(hostile, gradients_over_gradients)
{
    fixture f = make();
    layers l = make_layers(&f);
    tp_norm_delayed delayed;
    tp_io forward = {.in = tp_tensor_2d(f.memory[3], TP_DTYPE_F32, TOKENS, HIDDEN), .out = f.io.out};
    memset(f.memory[0], 0x3c, BYTES);
    cr_assert_eq(tp_linear_forward(f.ctx, l.linear, &f.pass, &forward, &l.linear_saved), TP_OK);
    cr_assert_eq(tp_mlp_forward(f.ctx, l.mlp, &f.pass, &forward, &l.mlp_saved), TP_OK);
    cr_assert_eq(tp_attention_forward(f.ctx, l.attention, &f.pass, &forward, &l.attention_saved), TP_OK);
    cr_assert_eq(tp_norm_forward(f.ctx, l.norm, &f.pass, &forward, &l.norm_saved), TP_OK);
    cr_assert_eq(tp_block_forward(f.ctx, f.block, &f.pass, &forward, &f.saved), TP_OK);
    for (int away = 0; away < 2; away++) {
        f.io.out = f.io.in;
        f.io.out.data = f.memory[0] + away * (int)sizeof(float);
        check_apart(&f, "square", tp_linear_backward(f.ctx, l.linear, &f.pass, &f.io, &l.linear_saved));
        check_apart(&f, "square", tp_linear_backward_input(f.ctx, l.linear, &f.pass, &f.io, NULL));
        check_apart(&f, "wide", tp_mlp_backward(f.ctx, l.mlp, &f.pass, &f.io, &l.mlp_saved));
        check_apart(&f, "heads", tp_attention_backward(f.ctx, l.attention, &f.pass, &f.io, &l.attention_saved));
        check_apart(&f, "row", tp_norm_backward_input(f.ctx, l.norm, &f.pass, &f.io, &l.norm_saved, &delayed));
        check_apart(&f, "block", tp_block_backward(f.ctx, f.block, &f.pass, &f.io, &f.saved));
    }
    drop_layers(&l);
    drop(&f);
}

/* A norm's forward adds none: given one, it must not be forgotten. */
Test(hostile, norms_take_no_residual)
{
    fixture f = make();
    layers l = make_layers(&f);
    f.io.residual = f.io.out;
    cr_assert_eq(tp_norm_forward(f.ctx, l.norm, &f.pass, &f.io, NULL), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_last_message(), "residual"), "%s", tp_last_message());
    drop_layers(&l);
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
    fixture f = make();
    layers l = make_layers(&f);
    cr_expect_eq(tp_linear_params(l.linear, NULL, 1), 1);
    cr_expect_eq(tp_mlp_params(l.mlp, NULL, 9), 2);
    cr_expect_eq(tp_attention_params(l.attention, NULL, 9), 2);
    cr_expect_eq(tp_norm_params(l.norm, NULL, 9), 2);
    cr_expect_eq(tp_block_params(f.block, NULL, 99), 8);
    drop_layers(&l);
    drop(&f);
}

Test(hostile, no_layer_needs_no_memory)
{
    const tp_pass pass = {.tokens = TOKENS}, negative = {.tokens = -TOKENS};
    fixture f = make();
    cr_expect_eq(tp_linear_delayed_bytes(NULL, &pass), 0);
    cr_expect_eq(tp_mlp_saved_bytes(NULL, &pass), 0);
    cr_expect_eq(tp_mlp_delayed_bytes(NULL, &pass), 0);
    cr_expect_eq(tp_attention_saved_bytes(NULL, &pass), 0);
    cr_expect_eq(tp_attention_delayed_bytes(NULL, &pass), 0);
    cr_expect_eq(tp_norm_saved_bytes(NULL, &pass), 0);
    cr_expect_eq(tp_block_saved_bytes(NULL, &pass), 0);
    cr_expect_eq(tp_block_delayed_bytes(NULL, &pass), 0);
    cr_expect_eq(tp_block_saved_bytes(f.block, NULL), 0);
    cr_expect_eq(tp_block_delayed_bytes(f.block, NULL), 0);
    cr_expect_eq(tp_cross_entropy_saved_bytes(NULL), 0);
    cr_expect_eq(tp_linear_local_features(NULL), 0);
    cr_expect_eq(tp_param_elements(NULL), 0);
    for (int parallel = 0; parallel < 2; parallel++) {
        cr_expect_eq(tp_pass_rows(f.ctx, NULL, parallel).end, 0);
        cr_expect_eq(tp_pass_rows(f.ctx, &negative, parallel).end, 0);
    }
    cr_expect_eq(tp_pass_rows(NULL, &pass, true).end, 0);
    drop(&f);
}

/* Products of sizes that pass 2^63: refused, not wrapped. */
Test(hostile, products_of_sizes)
{
    const int64_t half = INT64_MAX / 2 + 1;
    fixture f = make();
    tp_linear *linear = NULL;
    tp_mlp *mlp = NULL;
    tp_attention *attention = NULL;
    tp_linear_desc parts = {.in_features = 4, .out_features = 6, .dtype = TP_DTYPE_F32, .parts = 2,
                            .part = {{half, 4, 0}, {6, 1, 0}}};
    cr_expect_eq(tp_linear_create(f.ctx, &parts, &linear), TP_ERR_ARGUMENT);
    parts.part[0].unit_size = 1;
    parts.part[1].units = half;
    cr_expect_eq(tp_linear_create(f.ctx, &parts, &linear), TP_ERR_ARGUMENT);
    tp_mlp_desc gated = {.hidden = 4, .ffn = half, .activation = TP_ACTIVATION_SWIGLU, .dtype = TP_DTYPE_F32};
    cr_expect_eq(tp_mlp_create(f.ctx, &gated, &mlp), TP_ERR_ARGUMENT);
    tp_attention_desc heads = {.hidden = 12, .heads = 3, .head_dim = half, .dtype = TP_DTYPE_F32};
    cr_expect_eq(tp_attention_create(f.ctx, &heads, &attention), TP_ERR_ARGUMENT);
    heads = (tp_attention_desc){.hidden = 12, .heads = half, .head_dim = 1, .dtype = TP_DTYPE_F32};
    cr_expect_eq(tp_attention_create(f.ctx, &heads, &attention), TP_ERR_ARGUMENT);
    cr_expect(linear == NULL && mlp == NULL && attention == NULL);
    f.pass.tokens = half;
    f.pass.sequences = 1;
    f.io.in.shape[0] = f.io.out.shape[0] = half;
    layers l = {0};
    static const tp_linear_desc square = {.in_features = HIDDEN, .out_features = HIDDEN, .dtype = TP_DTYPE_F32};
    cr_assert_eq(tp_linear_create(f.ctx, &square, &l.linear), TP_OK);
    cr_expect_eq(tp_linear_forward(f.ctx, l.linear, &f.pass, &f.io, NULL), TP_ERR_SHAPE);
    tp_linear_destroy(l.linear);
    drop(&f);
}

/* Past these a number would mean another layer's masks, or no rotation. */
Test(hostile, numbers_out_of_range)
{
    fixture f = make();
    tp_mlp *mlp = NULL;
    tp_attention *attention = NULL;
    const tp_mlp_desc far = {.hidden = 4, .ffn = 4, .dtype = TP_DTYPE_F32, .layer = 1u << 24};
    tp_attention_desc heads = {.hidden = 4, .heads = 2, .dtype = TP_DTYPE_F32, .layer = UINT32_MAX};
    cr_expect_eq(tp_mlp_create(f.ctx, &far, &mlp), TP_ERR_ARGUMENT);
    cr_expect_not_null(strstr(tp_last_message(), "16777216"), "%s", tp_last_message());
    cr_expect_eq(tp_attention_create(f.ctx, &heads, &attention), TP_ERR_ARGUMENT);
    heads.layer = 0;
    heads.rope_theta = (double)INFINITY;
    cr_expect_eq(tp_attention_create(f.ctx, &heads, &attention), TP_ERR_ARGUMENT);
    cr_expect(mlp == NULL && attention == NULL);
    drop(&f);
}
