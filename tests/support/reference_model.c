#include "reference_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "reference_pieces.h"

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static void add_param(tpt_reference *model, const char *name, int64_t rows, int64_t cols)
{
    tpt_reference_param *param = &model->param[model->params++];
    snprintf(param->name, sizeof param->name, "%s", name);
    param->rows = rows;
    param->cols = cols;
    param->at = model->elements;
    model->elements += rows * cols;
}

static void add_in_layer(tpt_reference *model, int layer, const char *suffix, int64_t rows, int64_t cols)
{
    char name[TP_PARAM_NAME];
    snprintf(name, sizeof name, "h.%d.%s", layer, suffix);
    add_param(model, name, rows, cols);
}

static bool is_gpt2(const tpt_reference *model)
{
    return model->desc.family == TP_MODEL_GPT2;
}

static bool is_gated(const tpt_reference *model)
{
    return model->desc.activation == TP_ACTIVATION_SWIGLU || model->desc.activation == TP_ACTIVATION_GEGLU;
}

static bool is_tied(const tpt_reference *model)
{
    return model->desc.tied > 0 || (model->desc.tied == 0 && is_gpt2(model));
}

static int64_t query_width(const tpt_reference *model)
{
    return model->desc.heads * model->head_dim;
}

static int64_t kv_width(const tpt_reference *model)
{
    return model->desc.kv_heads * model->head_dim;
}

static int64_t up_width(const tpt_reference *model)
{
    return (is_gated(model) ? 2 : 1) * model->desc.ffn;
}

static void add_layer(tpt_reference *model, int layer)
{
    int64_t hidden = model->desc.hidden, ffn = model->desc.ffn;
    int64_t qkv = query_width(model) + 2 * kv_width(model);
    bool bias = is_gpt2(model);
    add_in_layer(model, layer, "norm1.weight", hidden, 1);
    add_in_layer(model, layer, "attention.qkv.weight", qkv, hidden);
    add_in_layer(model, layer, "attention.proj.weight", hidden, query_width(model));
    add_in_layer(model, layer, "norm2.weight", hidden, 1);
    add_in_layer(model, layer, "mlp.up.weight", up_width(model), hidden);
    add_in_layer(model, layer, "mlp.down.weight", hidden, ffn);
    if (!bias)
        return;
    add_in_layer(model, layer, "norm1.bias", hidden, 1);
    add_in_layer(model, layer, "attention.qkv.bias", qkv, 1);
    add_in_layer(model, layer, "attention.proj.bias", hidden, 1);
    add_in_layer(model, layer, "norm2.bias", hidden, 1);
    add_in_layer(model, layer, "mlp.up.bias", up_width(model), 1);
    add_in_layer(model, layer, "mlp.down.bias", hidden, 1);
}

void tpt_reference_init(tpt_reference *model, const tp_model_desc *desc)
{
    *model = (tpt_reference){.desc = *desc};
    model->head_dim = desc->head_dim != 0 ? desc->head_dim : desc->hidden / desc->heads;
    add_param(model, "wte.weight", desc->vocabulary, desc->hidden);
    if (is_gpt2(model))
        add_param(model, "wte.position", desc->positions, desc->hidden);
    for (int layer = 0; layer < desc->layers; layer++)
        add_layer(model, layer);
    add_param(model, "norm.weight", desc->hidden, 1);
    if (is_gpt2(model))
        add_param(model, "norm.bias", desc->hidden, 1);
    if (!is_tied(model))
        add_param(model, "head.weight", desc->vocabulary, desc->hidden);
}

const tpt_reference_param *tpt_reference_find(const tpt_reference *model, const char *name)
{
    for (int i = 0; i < model->params; i++)
        if (strcmp(model->param[i].name, name) == 0)
            return &model->param[i];
    return NULL;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* What one run reads and writes; gradient NULL: forward only. */
typedef struct run {
    const tpt_reference *model;
    const tpt_reference_batch *batch;
    const double *values;
    double *gradient;
} run;

static tpt_weight weight_of(const run *r, const char *name)
{
    const tpt_reference_param *param = tpt_reference_find(r->model, name);
    if (param == NULL)
        return (tpt_weight){NULL, NULL};
    return (tpt_weight){r->values + param->at, r->gradient != NULL ? r->gradient + param->at : NULL};
}

static tpt_weight layer_weight(const run *r, int layer, const char *suffix)
{
    char name[TP_PARAM_NAME];
    snprintf(name, sizeof name, "h.%d.%s", layer, suffix);
    return weight_of(r, name);
}

static double *array(int64_t count)
{
    return tpt_allocate((size_t)count * sizeof(double));
}

static tpt_norm norm_of(const run *r)
{
    const tp_model_desc *desc = &r->model->desc;
    double epsilon = desc->norm_epsilon != 0.0f ? (double)desc->norm_epsilon : (double)1e-5f;
    return (tpt_norm){!is_gpt2(r->model), r->batch->tokens, desc->hidden, epsilon};
}

static void activate(const tpt_reference *model, double *y, const double *x, int64_t tokens)
{
    int64_t n = model->desc.ffn, width = up_width(model);
    double slope;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < n; i++) {
            double value = tpt_activation(model->desc.activation, x[t * width + i], &slope);
            y[t * n + i] = is_gated(model) ? value * x[t * width + n + i] : value;
        }
}

static void activate_grad(const tpt_reference *model, double *dx, const double *dy, const double *x, int64_t tokens)
{
    int64_t n = model->desc.ffn, width = up_width(model);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < n; i++) {
            double slope, d = dy[t * n + i];
            double value = tpt_activation(model->desc.activation, x[t * width + i], &slope);
            dx[t * width + i] = d * slope * (is_gated(model) ? x[t * width + n + i] : 1.0);
            if (is_gated(model))
                dx[t * width + n + i] = d * value;
        }
}

/* Rotates halves of each query and key head by position; direction -1 undoes it. */
static void rotate(const run *r, double *qkv, double direction)
{
    const tpt_reference *model = r->model;
    double theta = model->desc.rope_theta != 0.0 ? model->desc.rope_theta : 10000.0;
    int64_t half = model->head_dim / 2, width = query_width(model) + 2 * kv_width(model);
    for (int64_t s = 0; s < r->batch->sequences; s++)
        for (int64_t t = r->batch->offsets[s]; t < r->batch->offsets[s + 1]; t++)
            for (int64_t h = 0; h < model->desc.heads + model->desc.kv_heads; h++)
                for (int64_t i = 0; i < half; i++) {
                    double *x = qkv + t * width + h * model->head_dim + i;
                    double angle = direction * (double)(t - r->batch->offsets[s]) *
                                   pow(theta, -2.0 * (double)i / (double)model->head_dim);
                    double a = x[0], b = x[half];
                    x[0] = a * cos(angle) - b * sin(angle);
                    x[half] = b * cos(angle) + a * sin(angle);
                }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* One query of one head: its key positions begin at row `first` and end at its own. */
typedef struct query {
    const double *q, *k, *v; /* k, v: of row `first` */
    int64_t keys, stride, dim;
} query;

static query query_of(const tpt_reference *model, const double *qkv, int64_t first, int64_t row, int64_t head)
{
    int64_t width = query_width(model) + 2 * kv_width(model);
    int64_t kv_head = head / (model->desc.heads / model->desc.kv_heads);
    const double *keys = qkv + first * width + query_width(model) + kv_head * model->head_dim;
    return (query){qkv + row * width + head * model->head_dim, keys, keys + kv_width(model), row - first + 1, width,
                   model->head_dim};
}

static void probabilities(const query *at, double *p)
{
    double most = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < at->keys; j++) {
        p[j] = 0.0;
        for (int64_t d = 0; d < at->dim; d++)
            p[j] += at->q[d] * at->k[j * at->stride + d] / sqrt((double)at->dim);
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < at->keys; j++)
        sum += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j < at->keys; j++)
        p[j] /= sum;
}

static void attend(const query *at, double *p, double *out)
{
    probabilities(at, p);
    for (int64_t d = 0; d < at->dim; d++) {
        out[d] = 0.0;
        for (int64_t j = 0; j < at->keys; j++)
            out[d] += p[j] * at->v[j * at->stride + d];
    }
}

/* dqkv has the layout of qkv. */
static void attend_grad(const query *at, double *p, const double *dout, const double *qkv, double *dqkv)
{
    double *dq = dqkv + (at->q - qkv), *dk = dqkv + (at->k - qkv), *dv = dqkv + (at->v - qkv);
    double mean = 0.0, root = sqrt((double)at->dim);
    probabilities(at, p);
    for (int64_t j = 0; j < at->keys; j++)
        for (int64_t d = 0; d < at->dim; d++)
            mean += p[j] * dout[d] * at->v[j * at->stride + d];
    for (int64_t j = 0; j < at->keys; j++) {
        double dp = 0.0;
        for (int64_t d = 0; d < at->dim; d++) {
            dp += dout[d] * at->v[j * at->stride + d];
            dv[j * at->stride + d] += p[j] * dout[d];
        }
        double ds = p[j] * (dp - mean) / root;
        for (int64_t d = 0; d < at->dim; d++) {
            dq[d] += ds * at->k[j * at->stride + d];
            dk[j * at->stride + d] += ds * at->q[d];
        }
    }
}

/* Calls attend or attend_grad for every query: dqkv NULL for the first. io: output, or its gradient. */
static void attention(const run *r, const double *qkv, double *io, double *dqkv)
{
    const tpt_reference *model = r->model;
    double *p = array(r->batch->tokens);
    for (int64_t s = 0; s < r->batch->sequences; s++)
        for (int64_t t = r->batch->offsets[s]; t < r->batch->offsets[s + 1]; t++)
            for (int64_t h = 0; h < model->desc.heads; h++) {
                query at = query_of(model, qkv, r->batch->offsets[s], t, h);
                double *place = io + t * query_width(model) + h * model->head_dim;
                if (dqkv == NULL)
                    attend(&at, p, place);
                else
                    attend_grad(&at, p, place, qkv, dqkv);
            }
    free(p);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Activations of one layer. x and its successor belong to the caller. */
typedef struct layer_cache {
    double *x, *norm1, *qkv, *core, *middle, *norm2, *pre, *act;
} layer_cache;

static void add(double *to, const double *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

static layer_cache new_cache(const tpt_reference *model, int64_t tokens, double *x)
{
    int64_t hidden = tokens * model->desc.hidden;
    return (layer_cache){.x = x,
                         .norm1 = array(hidden),
                         .qkv = array(tokens * (query_width(model) + 2 * kv_width(model))),
                         .core = array(tokens * query_width(model)),
                         .middle = array(hidden),
                         .norm2 = array(hidden),
                         .pre = array(tokens * up_width(model)),
                         .act = array(tokens * model->desc.ffn)};
}

static void free_cache(layer_cache *c)
{
    double *all[] = {c->x, c->norm1, c->qkv, c->core, c->middle, c->norm2, c->pre, c->act};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static tpt_sizes qkv_sizes(const tpt_reference *m, int64_t tokens)
{
    return (tpt_sizes){tokens, m->desc.hidden, query_width(m) + 2 * kv_width(m)};
}

static double *layer_forward(const run *r, int layer, layer_cache *c)
{
    const tpt_reference *m = r->model;
    tpt_norm n = norm_of(r);
    int64_t tokens = r->batch->tokens, hidden = m->desc.hidden;
    double *out = array(tokens * hidden);
    tpt_norm_forward(&n, c->norm1, c->x, layer_weight(r, layer, "norm1.weight"), layer_weight(r, layer, "norm1.bias"));
    tpt_linear(c->qkv, c->norm1, layer_weight(r, layer, "attention.qkv.weight"),
               layer_weight(r, layer, "attention.qkv.bias"), qkv_sizes(m, tokens));
    if (!is_gpt2(m))
        rotate(r, c->qkv, 1.0);
    attention(r, c->qkv, c->core, NULL);
    tpt_linear(c->middle, c->core, layer_weight(r, layer, "attention.proj.weight"),
               layer_weight(r, layer, "attention.proj.bias"), (tpt_sizes){tokens, query_width(m), hidden});
    add(c->middle, c->x, tokens * hidden);
    tpt_norm_forward(&n, c->norm2, c->middle, layer_weight(r, layer, "norm2.weight"),
                     layer_weight(r, layer, "norm2.bias"));
    tpt_linear(c->pre, c->norm2, layer_weight(r, layer, "mlp.up.weight"), layer_weight(r, layer, "mlp.up.bias"),
           (tpt_sizes){tokens, hidden, up_width(m)});
    activate(m, c->act, c->pre, tokens);
    tpt_linear(out, c->act, layer_weight(r, layer, "mlp.down.weight"), layer_weight(r, layer, "mlp.down.bias"),
           (tpt_sizes){tokens, m->desc.ffn, hidden});
    add(out, c->middle, tokens * hidden);
    return out;
}

/* d: gradient of the layer's output, turned into that of its input. */
static void layer_backward(const run *r, int layer, const layer_cache *c, double *d)
{
    const tpt_reference *m = r->model;
    tpt_norm n = norm_of(r);
    int64_t tokens = r->batch->tokens, hidden = m->desc.hidden;
    layer_cache g = new_cache(m, tokens, array(0));
    tpt_linear_grad(g.act, d, c->act, layer_weight(r, layer, "mlp.down.weight"),
                    layer_weight(r, layer, "mlp.down.bias"), (tpt_sizes){tokens, m->desc.ffn, hidden});
    activate_grad(m, g.pre, g.act, c->pre, tokens);
    tpt_linear_grad(g.norm2, g.pre, c->norm2, layer_weight(r, layer, "mlp.up.weight"),
                    layer_weight(r, layer, "mlp.up.bias"), (tpt_sizes){tokens, hidden, up_width(m)});
    tpt_norm_grad(&n, d, g.norm2, c->middle, layer_weight(r, layer, "norm2.weight"),
                  layer_weight(r, layer, "norm2.bias"));
    tpt_linear_grad(g.core, d, c->core, layer_weight(r, layer, "attention.proj.weight"),
                    layer_weight(r, layer, "attention.proj.bias"), (tpt_sizes){tokens, query_width(m), hidden});
    attention(r, c->qkv, g.core, g.qkv);
    if (!is_gpt2(m))
        rotate(r, g.qkv, -1.0);
    tpt_linear_grad(g.norm1, g.qkv, c->norm1, layer_weight(r, layer, "attention.qkv.weight"),
                    layer_weight(r, layer, "attention.qkv.bias"), qkv_sizes(m, tokens));
    tpt_norm_grad(&n, d, g.norm1, c->x, layer_weight(r, layer, "norm1.weight"), layer_weight(r, layer, "norm1.bias"));
    free_cache(&g);
}

/* Rows of the tables, added to x (forward) or gathered from it (table gradients). */
static void embed(const run *r, double *x, bool backward)
{
    int64_t hidden = r->model->desc.hidden;
    tpt_weight table = weight_of(r, "wte.weight"), position = weight_of(r, "wte.position");
    for (int64_t s = 0; s < r->batch->sequences; s++)
        for (int64_t t = r->batch->offsets[s]; t < r->batch->offsets[s + 1]; t++)
            for (int64_t i = 0; i < hidden; i++) {
                int64_t at = r->batch->ids[t] * hidden + i, place = (t - r->batch->offsets[s]) * hidden + i;
                if (backward)
                    table.gradient[at] += x[t * hidden + i];
                else
                    x[t * hidden + i] += table.value[at];
                if (position.value != NULL && backward)
                    position.gradient[place] += x[t * hidden + i];
                else if (position.value != NULL)
                    x[t * hidden + i] += position.value[place];
            }
}

/* Loss of one token; its logits become their gradient. */
static double token_loss(const tpt_reference *model, double *logits, int32_t target, double loss_scale)
{
    int64_t n = model->desc.vocabulary;
    double smoothing = model->desc.label_smoothing, z = model->desc.z_loss;
    double most = -INFINITY, sum = 0.0, mean = 0.0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, logits[i]);
    for (int64_t i = 0; i < n; i++) {
        sum += exp(logits[i] - most);
        mean += logits[i] / (double)n;
    }
    double lse = most + log(sum);
    double loss = target < 0 ? 0.0 : lse - (1.0 - smoothing) * logits[target] - smoothing * mean + z * lse * lse;
    for (int64_t i = 0; i < n; i++) {
        double share = exp(logits[i] - lse) * (1.0 + 2.0 * z * lse) - (i == target ? 1.0 - smoothing : 0.0) -
                       smoothing / (double)n;
        logits[i] = target < 0 ? 0.0 : loss_scale * share;
    }
    return loss;
}

/* Head and loss on the last layer's output x; d gets the gradient of x, or stays 0. */
static double head(const run *r, const double *x, double loss_scale, double *d, double *logits_out)
{
    const tpt_reference *m = r->model;
    tpt_norm n = norm_of(r);
    int64_t tokens = r->batch->tokens, hidden = m->desc.hidden, vocabulary = m->desc.vocabulary;
    tpt_weight w = weight_of(r, is_tied(m) ? "wte.weight" : "head.weight"), none = {NULL, NULL};
    double *normed = array(tokens * hidden), *dnormed = array(tokens * hidden), *logits = array(tokens * vocabulary);
    tpt_norm_forward(&n, normed, x, weight_of(r, "norm.weight"), weight_of(r, "norm.bias"));
    tpt_linear(logits, normed, w, none, (tpt_sizes){tokens, hidden, vocabulary});
    if (logits_out != NULL)
        memcpy(logits_out, logits, (size_t)(tokens * vocabulary) * sizeof *logits);
    double loss = 0.0;
    for (int64_t t = 0; t < tokens; t++)
        loss += token_loss(m, logits + t * vocabulary, r->batch->targets[t], loss_scale);
    if (r->gradient != NULL) {
        tpt_linear_grad(dnormed, logits, normed, w, none, (tpt_sizes){tokens, hidden, vocabulary});
        tpt_norm_grad(&n, d, dnormed, x, weight_of(r, "norm.weight"), weight_of(r, "norm.bias"));
    }
    free(normed);
    free(dnormed);
    free(logits);
    return loss;
}

double tpt_reference_loss(const tpt_reference *model, const double *values, const tpt_reference_batch *batch,
                          double loss_scale, double *gradient, double *logits)
{
    run r = {model, batch, values, gradient};
    int64_t count = batch->tokens * model->desc.hidden;
    layer_cache cache[TPT_REFERENCE_MOST_LAYERS];
    double *x = array(count), *d = array(count);
    embed(&r, x, false);
    for (int layer = 0; layer < model->desc.layers; layer++) {
        cache[layer] = new_cache(model, batch->tokens, x);
        x = layer_forward(&r, layer, &cache[layer]);
    }
    double loss = head(&r, x, loss_scale, d, logits);
    free(x);
    for (int layer = (int)model->desc.layers - 1; layer >= 0; layer--) {
        if (gradient != NULL)
            layer_backward(&r, layer, &cache[layer], d);
        free_cache(&cache[layer]);
    }
    if (gradient != NULL)
        embed(&r, d, true);
    free(d);
    return loss;
}
