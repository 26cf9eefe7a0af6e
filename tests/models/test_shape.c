/* What follows from a model's description alone: published sizes, costs, refusals. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <tp/model.h>

static tp_model_desc preset(const char *name)
{
    tp_model_desc desc;
    cr_assert_eq(tp_model_preset(name, &desc), TP_OK, "%s", tp_last_message());
    return desc;
}

Test(shape, published_parameter_counts)
{
    static const struct {
        const char *name;
        int64_t parameters;
    } published[] = {{"gpt2", 124439808},          {"gpt2-medium", 354823168},    {"gpt2-large", 774030080},
                     {"gpt2-xl", 1557611200},      {"llama2-7b", 6738415616},     {"llama2-13b", 13015864320},
                     {"llama2-70b", 68976648192},  {"llama3-8b", 8030261248},     {"llama3-70b", 70553706496}};
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        tp_model_desc desc = preset(published[i].name);
        cr_assert_eq(tp_model_parameters(&desc), published[i].parameters, "%s: %lld", published[i].name,
                     (long long)tp_model_parameters(&desc));
    }
}

Test(shape, every_preset_is_sound)
{
    int count = 0;
    for (const char *name; (name = tp_model_preset_name(count)) != NULL; count++) {
        tp_model_desc desc = preset(name);
        cr_assert_eq(desc.dtype, TP_DTYPE_INVALID);
        desc.dtype = TP_DTYPE_BF16;
        for (int tp = 1; tp <= 8; tp++)
            cr_assert_eq(tp_model_check(&desc, tp), TP_OK, "%s: %s", name, tp_last_message());
    }
    cr_assert_geq(count, 9);
    cr_assert_null(tp_model_preset_name(-1));
}

Test(shape, unknown_names_get_the_nearest)
{
    static const char *const asked[][2] = {{"gpt-2", "\"gpt2\""},         {"gpt2-medum", "\"gpt2-medium\""},
                                           {"lama3-8b", "\"llama3-8b\""}, {"llama3-8B", "\"llama3-8b\""},
                                           {"GPT2-xl", "\"gpt2-xl\""},    {"", "\"gpt2\""}};
    tp_model_desc desc;
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        cr_assert_eq(tp_model_preset(asked[i][0], &desc), TP_ERR_ARGUMENT);
        cr_assert_not_null(strstr(tp_last_message(), asked[i][1]), "%s", tp_last_message());
    }
    cr_assert_eq(tp_model_preset(NULL, &desc), TP_ERR_ARGUMENT);
}

/* Worked by hand: hidden 64, 4 heads of 16 on 2 kv heads, SwiGLU 128, 2 layers, 32 tokens, vocabulary 128. */
Test(shape, operations_of_a_small_model)
{
    tp_model_desc desc = {.family = TP_MODEL_LLAMA,
                          .layers = 2,
                          .hidden = 64,
                          .heads = 4,
                          .kv_heads = 2,
                          .ffn = 128,
                          .vocabulary = 128,
                          .positions = 32};
    double causal = tp_model_flops(&desc, 1, 32);
    cr_assert_eq(causal, 516096.0, "%g", causal);
    /* attention is the part that grows with the sequence */
    cr_assert_eq(causal + (causal - tp_model_flops(&desc, 1, 0)), 540672.0);
    cr_assert_eq(tp_model_flops(&desc, 320, 32), 320 * 516096.0);
    /* Not that of full heads and a plain feed-forward of four times the width. */
    tp_model_desc other = desc;
    other.kv_heads = 4;
    other.ffn = 256;
    other.activation = TP_ACTIVATION_GELU;
    other.activation_set = true;
    cr_assert_eq(2.0 * tp_model_flops(&other, 1, 32) - tp_model_flops(&other, 1, 0), 688128.0);
}

static void check_refused(const tp_model_desc *desc, int tp, const char *first, const char *second)
{
    cr_assert_neq(tp_model_check(desc, tp), TP_OK, "expected: %s, %s", first, second);
    cr_assert_not_null(strstr(tp_last_message(), first), "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), second), "%s", tp_last_message());
}

Test(shape, refusals_name_field_and_numbers)
{
    const tp_model_desc good = {.family = TP_MODEL_LLAMA,
                                .layers = 2,
                                .hidden = 64,
                                .heads = 4,
                                .ffn = 128,
                                .vocabulary = 128,
                                .positions = 32,
                                .dtype = TP_DTYPE_F32};
    cr_assert_eq(tp_model_check(&good, 4), TP_OK);
    check_refused(&good, 8, "heads 4", "8 tensor-parallel");
    check_refused(&good, 0, "0 tensor-parallel", "1");
    tp_model_desc bad = good;
    bad.hidden = 65;
    check_refused(&bad, 1, "hidden 65", "heads 4");
    bad = good;
    bad.kv_heads = 3;
    check_refused(&bad, 1, "heads 4", "kv_heads 3");
    bad.kv_heads = 5;
    check_refused(&bad, 1, "kv_heads is 5", "4]");
    bad = good;
    bad.head_dim = 15;
    check_refused(&bad, 1, "head_dim 15", "2");
    bad = good;
    bad.ffn = 0;
    check_refused(&bad, 1, "ffn is 0", "[1");
    bad.ffn = 3;
    check_refused(&bad, 4, "ffn 3", "4 tensor-parallel");
    bad = good;
    bad.vocabulary = 3;
    check_refused(&bad, 4, "vocabulary 3", "4 tensor-parallel");
    bad.vocabulary = -1;
    check_refused(&bad, 1, "vocabulary is -1", "[1");
    bad = good;
    bad.dropout = 1.0f;
    check_refused(&bad, 1, "dropout is 1", "[0, 1)");
    bad.dropout = NAN;
    check_refused(&bad, 1, "dropout is nan", "[0, 1)");
    bad = good;
    bad.label_smoothing = -0.1f;
    check_refused(&bad, 1, "label_smoothing is -0.1", "[0, 1)");
    bad = good;
    bad.layers = 0;
    check_refused(&bad, 1, "layers is 0", "[1");
    bad = good;
    bad.activation = (tp_activation)99;
    check_refused(&bad, 1, "activation is 99", "[0");
    bad = good;
    bad.dtype = TP_DTYPE_INVALID;
    check_refused(&bad, 1, "dtype", "bf16");
}
