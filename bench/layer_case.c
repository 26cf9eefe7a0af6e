#include "layer_case.h"

#include "mirror.h"
#include "values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of the pattern that any_values asks for. */
#define PATTERN 1024

static int64_t tokens_of(const bench_layer_shape *shape)
{
    return shape->batch * shape->sequence;
}

static tp_status allocate_part(bench_layer *layer, bench_part_of *part)
{
    int64_t rows = part->rows.end - part->rows.begin, cols = part->cols.end - part->cols.begin;
    part->tensor = tp_tensor_2d(NULL, layer->shape.dtype, rows, cols);
    part->bytes = tp_tensor_bytes(part->tensor);
    return tp_ctx_allocate(layer->ctx, TP_MEMORY_SAVED, part->bytes, &part->tensor.data);
}

/* What this rank holds of a side of the layer: `cut` columns, or all columns of its tokens. */
static bench_part_of part_of_side(const bench_layer *layer, int64_t cols, bool cut)
{
    int ranks = tp_comm_size(tp_ctx_world(layer->ctx)), rank = tp_ctx_rank(layer->ctx);
    bench_part_of part = {.rows = {0, layer->pass.tokens}, .cols = {0, cols}, .all_cols = cols};
    if (cut)
        part.cols = tp_shard_range(cols, ranks, rank);
    else
        part.rows = tp_pass_rows(layer->ctx, &layer->pass, layer->shape.sequence_parallel);
    part.replicated = !cut && !layer->shape.sequence_parallel;
    return part;
}

/* Random numbers in [-1, 1) by global index. */
static void make_part(const bench_part_of *part, void *host, const char *name, uint64_t seed)
{
    tp_random_key key = {.seed = seed, .stream = tp_random_stream_name(name)};
    int64_t at = 0;
    for (int64_t row = part->rows.begin; row < part->rows.end; row++) {
        for (int64_t col = part->cols.begin; col < part->cols.end; col++, at++) {
            float value = 2 * tp_random_uniform(key, (uint64_t)(row * part->all_cols + col)) - 1;
            bench_store_real(host, part->tensor.dtype, at, value);
        }
    }
}

/* The first values written out, the others copied from them. */
static void make_pattern(const tp_tensor *tensor, void *host)
{
    int64_t count = tp_tensor_elements(*tensor), first = count < PATTERN ? count : PATTERN;
    size_t size = tp_dtype_size(tensor->dtype);
    for (int64_t i = 0; i < first; i++)
        bench_store_real(host, tensor->dtype, i, (float)(i * 7 % 13 - 6) * 0.0625f);
    for (int64_t i = first; i < count; i += PATTERN)
        memcpy((char *)host + (size_t)i * size, host, (size_t)(count - i < PATTERN ? count - i : PATTERN) * size);
}

static tp_status fill_pattern(tp_ctx *ctx, const tp_tensor *tensor)
{
    bench_mirror mirror;
    tp_status status = bench_mirror_open(&mirror, ctx, tensor->data, tp_tensor_bytes(*tensor));
    if (status == TP_OK) {
        make_pattern(tensor, mirror.host);
        status = bench_mirror_put(&mirror);
    }
    bench_mirror_close(&mirror);
    return status;
}

static tp_status fill_side(const bench_layer *layer, const bench_part_of *part, const char *name)
{
    if (layer->shape.any_values)
        return fill_pattern(layer->ctx, &part->tensor);
    bench_mirror mirror;
    tp_status status = bench_mirror_open(&mirror, layer->ctx, part->tensor.data, part->bytes);
    if (status == TP_OK) {
        make_part(part, mirror.host, name, tp_ctx_seed(layer->ctx));
        status = bench_mirror_put(&mirror);
    }
    bench_mirror_close(&mirror);
    return status;
}

static tp_status fill_params(bench_layer *layer)
{
    if (!layer->shape.any_values)
        return tp_params_init(layer->ctx, layer->param, layer->params);
    tp_status status = TP_OK;
    for (int i = 0; i < layer->params && status == TP_OK; i++) {
        status = fill_pattern(layer->ctx, &layer->param[i]->value);
        if (status == TP_OK)
            status = tp_param_touch(layer->ctx, layer->param[i]);
    }
    return status;
}

static tp_status open_buffers(bench_layer *layer)
{
    const bench_layer_shape *shape = &layer->shape;
    bool linear = shape->command == BENCH_LINEAR;
    bool row = linear && shape->kind == TP_LINEAR_ROW, column = linear && shape->kind == TP_LINEAR_COLUMN;
    int64_t in = row ? shape->ffn : shape->hidden, out = linear && !row ? shape->ffn : shape->hidden;
    layer->x = layer->dx = part_of_side(layer, in, row);
    layer->y = layer->dy = part_of_side(layer, out, column);
    bench_part_of *const parts[] = {&layer->x, &layer->y, &layer->dy, &layer->dx};
    for (int i = 0; i < 4; i++) {
        tp_status status = allocate_part(layer, parts[i]);
        if (status != TP_OK)
            return status;
    }
    tp_status status = fill_side(layer, &layer->x, "input");
    if (status == TP_OK)
        status = fill_side(layer, &layer->dy, "gradient");
    if (status != TP_OK)
        return status;
    layer->bytes = layer->table->saved_bytes(layer->object, &layer->pass);
    return tp_ctx_allocate(layer->ctx, TP_MEMORY_SAVED, layer->bytes, &layer->memory);
}

tp_status bench_layer_open(bench_layer *layer, tp_ctx *ctx, const bench_layer_shape *shape)
{
    *layer = (bench_layer){.ctx = ctx, .shape = *shape, .table = bench_layer_tables};
    while (layer->table->command != shape->command)
        layer->table++;
    layer->pass = (tp_pass){.tokens = tokens_of(shape), .sequences = shape->batch};
    tp_status status = layer->table->create(ctx, shape, &layer->object);
    if (status != TP_OK)
        return status;
    layer->params = layer->table->params(layer->object, layer->param, BENCH_LAYER_PARAMS);
    status = open_buffers(layer);
    if (status == TP_OK)
        status = fill_params(layer);
    return status == TP_OK ? tp_params_zero_grad(ctx, layer->param, layer->params) : status;
}

static void close_buffers(bench_layer *layer)
{
    bench_part_of *const parts[] = {&layer->x, &layer->y, &layer->dy, &layer->dx};
    for (int i = 0; i < 4; i++)
        if (parts[i]->tensor.data != NULL)
            tp_ctx_release(layer->ctx, TP_MEMORY_SAVED, parts[i]->tensor.data, parts[i]->bytes);
    if (layer->memory != NULL)
        tp_ctx_release(layer->ctx, TP_MEMORY_SAVED, layer->memory, layer->bytes);
    layer->memory = NULL;
    for (int i = 0; i < 4; i++)
        parts[i]->tensor.data = NULL;
}

void bench_layer_close(bench_layer *layer)
{
    if (layer->ctx == NULL)
        return;
    close_buffers(layer);
    if (layer->object != NULL)
        layer->table->destroy(layer->object);
    *layer = (bench_layer){0};
}

tp_status bench_layer_reshape(bench_layer *layer, int64_t batch, int64_t sequence)
{
    close_buffers(layer);
    layer->shape.batch = batch;
    layer->shape.sequence = sequence;
    layer->pass = (tp_pass){.tokens = tokens_of(&layer->shape), .sequences = batch};
    return open_buffers(layer);
}

tp_status bench_layer_forward(void *arg)
{
    bench_layer *layer = arg;
    return layer->table->forward(layer);
}

tp_status bench_layer_backward(void *arg)
{
    bench_layer *layer = arg;
    return layer->table->backward(layer);
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

/* One comparison under way: what was different in all, and this tensor's squares. */
typedef struct bench_meeting {
    bool write; /* this becomes the reference */
    int64_t different;
    double error, norm;
} bench_meeting;

static float *floats(int64_t count)
{
    return malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
}

bool bench_layer_reference_open(bench_layer_reference *reference, const bench_layer *layer)
{
    *reference = (bench_layer_reference){0};
    reference->y = floats(layer->pass.tokens * layer->y.all_cols);
    reference->dx = floats(layer->pass.tokens * layer->dx.all_cols);
    bool good = reference->y != NULL && reference->dx != NULL;
    for (int i = 0; i < layer->params; i++) {
        reference->grad[i] = floats(tp_param_elements(layer->param[i]));
        good = good && reference->grad[i] != NULL;
    }
    return good;
}

void bench_layer_reference_close(bench_layer_reference *reference)
{
    free(reference->y);
    free(reference->dx);
    for (int i = 0; i < BENCH_LAYER_PARAMS; i++)
        free(reference->grad[i]);
    *reference = (bench_layer_reference){0};
}

/* How two values are to be held against each other. */
static void meet_value(bench_meeting *meeting, float *place, float value)
{
    if (meeting->write)
        *place = value;
    else {
        double off = (double)value - (double)*place;
        meeting->different += memcmp(place, &value, sizeof value) != 0;
        meeting->error += off * off;
        meeting->norm += (double)*place * (double)*place;
    }
}

/* Writes the part into the global matrix, or holds it against that. */
static tp_status meet_global(tp_ctx *ctx, const bench_part_of *part, float *global, bench_meeting *meeting)
{
    bench_mirror mirror;
    tp_status status = bench_mirror_open(&mirror, ctx, part->tensor.data, part->bytes);
    if (status == TP_OK)
        status = bench_mirror_get(&mirror);
    int64_t at = 0;
    for (int64_t row = part->rows.begin; row < part->rows.end && status == TP_OK; row++)
        for (int64_t col = part->cols.begin; col < part->cols.end; col++, at++)
            meet_value(meeting, &global[row * part->all_cols + col],
                       (float)bench_load(mirror.host, part->tensor.dtype, at));
    bench_mirror_close(&mirror);
    return status;
}

static tp_status meet_gradient(bench_layer *layer, const tp_param *param, float *global, bench_meeting *meeting)
{
    int64_t count = tp_param_elements(param);
    float *mine = floats(count);
    tp_status status = mine != NULL ? tp_param_gather(layer->ctx, param, 1, mine) : TP_ERR_MEMORY;
    bool meets = !meeting->write || tp_ctx_rank(layer->ctx) == 0; /* one writes what all have */
    for (int64_t i = 0; i < count && status == TP_OK && meets; i++)
        meet_value(meeting, &global[i], mine[i]);
    free(mine);
    return status;
}

/* One step from clean gradients. */
static tp_status run_once(bench_layer *layer)
{
    tp_status status = tp_params_zero_grad(layer->ctx, layer->param, layer->params);
    if (status == TP_OK)
        status = bench_layer_forward(layer);
    if (status == TP_OK)
        status = bench_layer_backward(layer);
    if (status == TP_OK)
        status = tp_params_finish(layer->ctx, layer->param, layer->params);
    return status == TP_OK ? tp_ctx_synchronize(layer->ctx) : status;
}

/* The end of one tensor's comparison. */
static void close_meeting(bench_meeting *meeting, double *worst)
{
    double off = meeting->norm > 0 ? sqrt(meeting->error / meeting->norm) : sqrt(meeting->error);
    if (!meeting->write && !(off <= *worst)) /* NaN is the worst */
        *worst = off;
    meeting->error = meeting->norm = 0;
}

tp_status bench_layer_hold(bench_layer *layer, bench_layer_reference *reference, int64_t *different, double *worst)
{
    tp_status status = run_once(layer);
    bench_meeting meeting = {.write = !reference->ready};
    /* Of what every rank holds alike, one writes. */
    const bench_part_of *const parts[] = {&layer->y, &layer->dx};
    float *const globals[] = {reference->y, reference->dx};
    *worst = 0;
    for (int i = 0; i < 2 && status == TP_OK; i++) {
        if (!meeting.write || !parts[i]->replicated || tp_ctx_rank(layer->ctx) == 0)
            status = meet_global(layer->ctx, parts[i], globals[i], &meeting);
        close_meeting(&meeting, worst);
    }
    for (int i = 0; i < layer->params && status == TP_OK; i++) {
        status = meet_gradient(layer, layer->param[i], reference->grad[i], &meeting);
        close_meeting(&meeting, worst);
    }
    *different = meeting.different;
    return status;
}

tp_status bench_layer_compare(bench_layer *layer, bench_layer_reference *reference, int64_t *different)
{
    double unused;
    return bench_layer_hold(layer, reference, different, &unused);
}

double bench_layer_flops(const bench_layer_shape *s)
{
    double tokens = (double)tokens_of(s), hidden = (double)s->hidden, ffn = (double)s->ffn;
    bool gated = s->activation == TP_ACTIVATION_SWIGLU || s->activation == TP_ACTIVATION_GEGLU;
    double mlp = 2 * tokens * hidden * ffn * (gated ? 3 : 2);
    double width = (double)(s->heads * s->head_dim), kv = (double)(s->kv_heads * s->head_dim);
    /* Keys that a query sees, on average: half the sequence, or the window. */
    double seen = ((double)s->sequence + 1) / 2;
    if (s->window > 0 && s->window < s->sequence) {
        double window = (double)s->window, n = (double)s->sequence;
        seen = (window * (window + 1) / 2 + (n - window) * window) / n;
    }
    double attention = 2 * tokens * hidden * (width + 2 * kv) + 2 * tokens * width * hidden + 4 * tokens * seen * width;
    switch (s->command) {
    case BENCH_LINEAR: return 2 * tokens * hidden * ffn;
    case BENCH_MLP: return mlp;
    case BENCH_ATTENTION: return attention;
    case BENCH_NORM: return NAN;
    default: return attention + mlp;
    }
}

void bench_layer_shape_text(const bench_layer_shape *s, char text[BENCH_CELL_TEXT])
{
    int used = snprintf(text, BENCH_CELL_TEXT, "%lldx%lld tokens, ", (long long)s->batch, (long long)s->sequence);
    char *rest = text + used;
    size_t left = BENCH_CELL_TEXT - (size_t)used;
    const char *activation = bench_activation_names[s->activation];
    if (s->command == BENCH_LINEAR)
        snprintf(rest, left, "%s %lldx%lld", bench_kind_names[s->kind], (long long)s->hidden, (long long)s->ffn);
    else if (s->command == BENCH_MLP)
        snprintf(rest, left, "%lldx%lld %s", (long long)s->hidden, (long long)s->ffn, activation);
    else if (s->command == BENCH_NORM)
        snprintf(rest, left, "%lld, %s", (long long)s->hidden, s->family == TP_MODEL_LLAMA ? "RMSNorm" : "LayerNorm");
    else if (s->command == BENCH_ATTENTION)
        snprintf(rest, left, "%lld, heads %lld/%lld", (long long)s->hidden, (long long)s->heads,
                 (long long)s->kv_heads);
    else
        snprintf(rest, left, "%lld, heads %lld/%lld, ffn %lld %s", (long long)s->hidden, (long long)s->heads,
                 (long long)s->kv_heads, (long long)s->ffn, activation);
}
