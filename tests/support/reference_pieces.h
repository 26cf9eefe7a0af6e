/* Matrix product, norms and activations in double precision, plain loops. */
#ifndef TPT_REFERENCE_PIECES_H
#define TPT_REFERENCE_PIECES_H

#include <tp/mlp.h>

/* A parameter's values and gradient; NULL where there is none. */
typedef struct tpt_weight {
    const double *value;
    double *gradient;
} tpt_weight;

/* A matrix product's sizes: y [tokens, out] = x [tokens, in] w^T + b. */
typedef struct tpt_sizes {
    int64_t tokens, in, out;
} tpt_sizes;

void tpt_linear(double *y, const double *x, tpt_weight w, tpt_weight b, tpt_sizes n);
/* dx is overwritten, gradients of w and b are added to. */
void tpt_linear_grad(double *dx, const double *dy, const double *x, tpt_weight w, tpt_weight b, tpt_sizes n);

typedef struct tpt_norm {
    bool rms;
    int64_t tokens, features;
    double epsilon;
} tpt_norm;

void tpt_norm_forward(const tpt_norm *norm, double *y, const double *x, tpt_weight gain, tpt_weight bias);
/* The gradient through the norm is added to dx. */
void tpt_norm_grad(const tpt_norm *norm, double *dx, const double *dy, const double *x, tpt_weight gain,
                   tpt_weight bias);

/* The activation of one number (of the gate, where gated), and its derivative. */
double tpt_activation(tp_activation kind, double x, double *slope);

#endif
