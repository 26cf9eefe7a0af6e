#include "reference_pieces.h"

#include <math.h>
#include <string.h>

void tpt_linear(double *y, const double *x, tpt_weight w, tpt_weight b, tpt_sizes n)
{
    for (int64_t t = 0; t < n.tokens; t++)
        for (int64_t o = 0; o < n.out; o++) {
            double sum = b.value != NULL ? b.value[o] : 0.0;
            for (int64_t i = 0; i < n.in; i++)
                sum += x[t * n.in + i] * w.value[o * n.in + i];
            y[t * n.out + o] = sum;
        }
}

void tpt_linear_grad(double *dx, const double *dy, const double *x, tpt_weight w, tpt_weight b, tpt_sizes n)
{
    memset(dx, 0, (size_t)(n.tokens * n.in) * sizeof *dx);
    for (int64_t t = 0; t < n.tokens; t++)
        for (int64_t o = 0; o < n.out; o++) {
            double d = dy[t * n.out + o];
            if (b.gradient != NULL)
                b.gradient[o] += d;
            for (int64_t i = 0; i < n.in; i++) {
                dx[t * n.in + i] += d * w.value[o * n.in + i];
                w.gradient[o * n.in + i] += d * x[t * n.in + i];
            }
        }
}

typedef struct moments {
    double mean, scale;
} moments;

static moments moments_of(const tpt_norm *norm, const double *x)
{
    int64_t n = norm->features;
    double mean = 0.0, square = 0.0;
    for (int64_t i = 0; !norm->rms && i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    return (moments){mean, 1.0 / sqrt(square + norm->epsilon)};
}

void tpt_norm_forward(const tpt_norm *norm, double *y, const double *x, tpt_weight gain, tpt_weight bias)
{
    int64_t n = norm->features;
    for (int64_t t = 0; t < norm->tokens; t++) {
        moments m = moments_of(norm, x + t * n);
        for (int64_t i = 0; i < n; i++)
            y[t * n + i] =
                (x[t * n + i] - m.mean) * m.scale * gain.value[i] + (bias.value != NULL ? bias.value[i] : 0.0);
    }
}

void tpt_norm_grad(const tpt_norm *norm, double *dx, const double *dy, const double *x, tpt_weight gain,
                   tpt_weight bias)
{
    int64_t n = norm->features;
    for (int64_t t = 0; t < norm->tokens; t++) {
        moments m = moments_of(norm, x + t * n);
        double sum = 0.0, along = 0.0;
        for (int64_t i = 0; i < n; i++) {
            double xhat = (x[t * n + i] - m.mean) * m.scale, d = dy[t * n + i];
            gain.gradient[i] += d * xhat;
            if (bias.gradient != NULL)
                bias.gradient[i] += d;
            sum += !norm->rms ? d * gain.value[i] / (double)n : 0.0;
            along += d * gain.value[i] * xhat / (double)n;
        }
        for (int64_t i = 0; i < n; i++) {
            double xhat = (x[t * n + i] - m.mean) * m.scale;
            dx[t * n + i] += m.scale * (dy[t * n + i] * gain.value[i] - sum - xhat * along);
        }
    }
}

double tpt_activation(tp_activation kind, double x, double *slope)
{
    static const double root_two_over_pi = 0.79788456080286535588, root_half = 0.70710678118654752440;
    double sigmoid = 1.0 / (1.0 + exp(-x));
    double inner = root_two_over_pi * (x + 0.044715 * x * x * x), tangent = tanh(inner);
    double below = 0.5 * (1.0 + erf(x * root_half));
    switch (kind) {
    case TP_ACTIVATION_GELU_TANH:
        *slope = 0.5 * (1.0 + tangent) +
                 0.5 * x * (1.0 - tangent * tangent) * root_two_over_pi * (1.0 + 3.0 * 0.044715 * x * x);
        return 0.5 * x * (1.0 + tangent);
    case TP_ACTIVATION_RELU: *slope = x > 0.0; return x > 0.0 ? x : 0.0;
    case TP_ACTIVATION_RELU2: *slope = x > 0.0 ? 2.0 * x : 0.0; return x > 0.0 ? x * x : 0.0;
    case TP_ACTIVATION_SWIGLU: *slope = sigmoid * (1.0 + x * (1.0 - sigmoid)); return x * sigmoid;
    default: *slope = below + x * 0.5 * root_two_over_pi * exp(-0.5 * x * x); return x * below;
    }
}
