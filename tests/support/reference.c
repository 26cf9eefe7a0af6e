#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"

void tpt_ref_linear(const double *x, int64_t rows, int64_t in, const double *w, const double *b, int64_t out, double *y)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = b != NULL ? b[o] : 0;
            for (int64_t i = 0; i < in; i++)
                sum += x[r * in + i] * w[o * in + i];
            y[r * out + o] = sum;
        }
}

void tpt_ref_norm(bool rms, const double *x, int64_t rows, int64_t cols, const double *gain, const double *bias,
                  double epsilon, double *y)
{
    for (int64_t r = 0; r < rows; r++, x += cols, y += cols) {
        double mean = 0, square = 0;
        for (int64_t c = 0; c < cols && !rms; c++)
            mean += x[c] / (double)cols;
        for (int64_t c = 0; c < cols; c++)
            square += (x[c] - mean) * (x[c] - mean) / (double)cols;
        for (int64_t c = 0; c < cols; c++)
            y[c] = (x[c] - mean) / sqrt(square + epsilon) * gain[c] + (bias != NULL ? bias[c] : 0);
    }
}

double tpt_ref_activation(tp_activation activation, double x)
{
    switch (activation) {
    case TP_ACTIVATION_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case TP_ACTIVATION_RELU: return x > 0 ? x : 0;
    case TP_ACTIVATION_RELU2: return x > 0 ? x * x : 0;
    case TP_ACTIVATION_SWIGLU: return x / (1 + exp(-x));
    default: return x * 0.5 * erfc(-x / sqrt(2.0));
    }
}

static void rotate(const tpt_ref_attention_shape *s, double *head, int64_t position)
{
    for (int64_t i = 0; i < s->rope_dim / 2; i++) {
        double angle = (double)position * pow(s->rope_theta, -2.0 * (double)i / (double)s->rope_dim);
        double a = head[i], b = head[i + s->rope_dim / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + s->rope_dim / 2] = b * cos(angle) + a * sin(angle);
    }
}

static bool sees(const tpt_ref_attention_shape *s, int64_t i, int64_t j)
{
    if (s->causal && j > i)
        return false;
    return s->window == 0 || (i - j < s->window && j - i < s->window);
}

/* One query of one head over the keys of its sequence. */
static void attend(const tpt_ref_attention_shape *s, const double *qkv, int64_t head, int64_t begin, int64_t end,
                   int64_t query, double *out)
{
    int64_t width = (s->heads + 2 * s->kv_heads) * s->head_dim, kv = head / (s->heads / s->kv_heads);
    const double *q = qkv + query * width + head * s->head_dim;
    double *score = tpt_allocate((size_t)(end - begin) * sizeof(double)), top = -INFINITY, sum = 0;
    for (int64_t j = begin; j < end; j++) {
        const double *k = qkv + j * width + (s->heads + kv) * s->head_dim;
        double dot = 0;
        for (int64_t d = 0; d < s->head_dim; d++)
            dot += q[d] * k[d];
        score[j - begin] = sees(s, query - begin, j - begin) ? dot / sqrt((double)s->head_dim) : -INFINITY;
        top = fmax(top, score[j - begin]);
    }
    for (int64_t j = begin; j < end; j++)
        sum += score[j - begin] = isinf(score[j - begin]) ? 0 : exp(score[j - begin] - top);
    for (int64_t d = 0; d < s->head_dim; d++) {
        out[d] = 0;
        for (int64_t j = begin; j < end && sum > 0; j++)
            out[d] += score[j - begin] / sum * qkv[j * width + (s->heads + s->kv_heads + kv) * s->head_dim + d];
    }
    free(score);
}

void tpt_ref_attention(const tpt_ref_attention_shape *s, const double *qkv, double *out)
{
    int64_t width = (s->heads + 2 * s->kv_heads) * s->head_dim;
    double *rotated = tpt_allocate((size_t)(s->tokens * width) * sizeof(double));
    memcpy(rotated, qkv, (size_t)(s->tokens * width) * sizeof(double));
    for (int64_t n = 0; n < s->sequences; n++)
        for (int64_t t = s->offsets[n]; t < s->offsets[n + 1] && s->rope_theta != 0; t++)
            for (int64_t h = 0; h < s->heads + s->kv_heads; h++)
                rotate(s, rotated + t * width + h * s->head_dim, t - s->offsets[n]);
    for (int64_t n = 0; n < s->sequences; n++)
        for (int64_t t = s->offsets[n]; t < s->offsets[n + 1]; t++)
            for (int64_t h = 0; h < s->heads; h++)
                attend(s, rotated, h, s->offsets[n], s->offsets[n + 1], t, out + (t * s->heads + h) * s->head_dim);
    free(rotated);
}
