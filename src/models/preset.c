/* Published shapes by name, and small ones for a laptop. */
#include <string.h>

#include <tp/model.h>

#include "core/context.h"

enum { LONGEST_NAME = 63 };

typedef struct preset {
    const char *name;
    tp_model_desc desc;
} preset;

#define GPT2(layers_, hidden_, heads_, vocabulary_, positions_)                                                        \
    {                                                                                                                  \
        .family = TP_MODEL_GPT2, .layers = (layers_), .hidden = (hidden_), .heads = (heads_),                          \
        .vocabulary = (vocabulary_), .positions = (positions_)                                                         \
    }

static const preset presets[] = {
    /* Radford et al. 2019 */
    {"gpt2", GPT2(12, 768, 12, 50257, 1024)},
    {"gpt2-medium", GPT2(24, 1024, 16, 50257, 1024)},
    {"gpt2-large", GPT2(36, 1280, 20, 50257, 1024)},
    {"gpt2-xl", GPT2(48, 1600, 25, 50257, 1024)},
    /* Bytes as tokens */
    {"gpt2-tiny", GPT2(4, 128, 8, 256, 256)},
    {"gpt2-mini", GPT2(6, 384, 8, 256, 256)},
    /* Touvron et al. 2023 */
    {"llama2-7b",
     {.family = TP_MODEL_LLAMA, .layers = 32, .hidden = 4096, .heads = 32, .ffn = 11008, .vocabulary = 32000,
      .positions = 4096}},
    {"llama2-13b",
     {.family = TP_MODEL_LLAMA, .layers = 40, .hidden = 5120, .heads = 40, .ffn = 13824, .vocabulary = 32000,
      .positions = 4096}},
    {"llama2-70b",
     {.family = TP_MODEL_LLAMA, .layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .ffn = 28672,
      .vocabulary = 32000,
      .positions = 4096}},
    /* Llama team 2024 */
    {"llama3-8b",
     {.family = TP_MODEL_LLAMA, .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336,
      .vocabulary = 128256,
      .positions = 8192, .rope_theta = 500000.0}},
    {"llama3-70b",
     {.family = TP_MODEL_LLAMA, .layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .ffn = 28672,
      .vocabulary = 128256,
      .positions = 8192, .rope_theta = 500000.0}},
    /* Bytes as tokens */
    {"llama-tiny",
     {.family = TP_MODEL_LLAMA, .layers = 4, .hidden = 128, .heads = 8, .kv_heads = 4, .ffn = 344, .vocabulary = 256,
      .positions = 256}},
};

enum { PRESETS = sizeof presets / sizeof presets[0] };

const char *tp_model_preset_name(int index)
{
    return index >= 0 && index < PRESETS ? presets[index].name : NULL;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* Levenshtein distance. */
static int distance(const char *a, const char *b)
{
    int row[LONGEST_NAME + 1];
    int length = (int)strlen(b);
    for (int j = 0; j <= length; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= length; j++) {
            int above = row[j];
            row[j] = smaller(smaller(above, row[j - 1]) + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[length];
}

static const char *nearest(const char *name)
{
    const char *best = presets[0].name;
    int best_distance = distance(name, best);
    for (int i = 1; i < PRESETS; i++) {
        int here = distance(name, presets[i].name);
        if (here < best_distance) {
            best = presets[i].name;
            best_distance = here;
        }
    }
    return best;
}

tp_status tp_model_preset(const char *name, tp_model_desc *out)
{
    if (name == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "model: name is NULL");
    TPI_TRY(tpi_given(NULL, "tp_model_preset: out", out));
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(name, presets[i].name) == 0) {
            *out = presets[i].desc;
            return TP_OK;
        }
    return tpi_message(TP_ERR_ARGUMENT, "model: unknown name \"%.100s\"; did you mean \"%s\"?", name, nearest(name));
}
