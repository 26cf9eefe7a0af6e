/* Layers in double precision: loops and formulas only, nothing of the library's. Matrices are row-major. */
#ifndef TPT_REFERENCE_H
#define TPT_REFERENCE_H

#include <tp/tp.h>

typedef struct tpt_matrix {
    double *data;
    int64_t rows, cols;
} tpt_matrix;

/* y[rows, out] = x[rows, in] w[out, in]^T + b (NULL: none). */
void tpt_ref_linear(const double *x, int64_t rows, int64_t in, const double *w, const double *b, int64_t out,
                    double *y);

/* rms: no mean, no bias. bias may be NULL. */
void tpt_ref_norm(bool rms, const double *x, int64_t rows, int64_t cols, const double *gain, const double *bias,
                  double epsilon, double *y);

/* One value of an ungated activation; of the gate for the gated ones. */
double tpt_ref_activation(tp_activation activation, double x);

typedef struct tpt_ref_attention_shape {
    int64_t tokens, heads, kv_heads, head_dim;
    const int64_t *offsets; /* [sequences + 1] */
    int64_t sequences;
    bool causal;
    int64_t window;
    double rope_theta; /* 0: none */
    int64_t rope_dim;
} tpt_ref_attention_shape;

/* qkv [tokens, (heads + 2 kv) head_dim] -> out [tokens, heads * head_dim]; rotates a copy of q and k first. */
void tpt_ref_attention(const tpt_ref_attention_shape *shape, const double *qkv, double *out);

#endif
