/* Activations and their derivatives on 16 lanes. The GEMM's epilogue and activation.c share them, so that fused and
 * separate forms give the same bits. */
#ifndef TPI_CPU_ACTIVATION_MATH_H
#define TPI_CPU_ACTIVATION_MATH_H

#include "core/ops.h"
#include "cpu/vector_math.h"

#define TPI_SQRT_HALF 0x1.6a09e6p-1f   /* sqrt(1/2) */
#define TPI_NORMAL_PEAK 0x1.988454p-2f /* 1/sqrt(2 pi) */
#define TPI_GELU_SQRT 0x1.988454p-1f   /* sqrt(2/pi) */
#define TPI_GELU_CUBE 0x1.6e4e26p-5f   /* 0.044715 */

/* Phi(x) = (1 + erf(x / sqrt 2)) / 2 */
TPI_LANE_INLINE vf tpi_normal_cdf(vf x)
{
    return vf_fma(vf_erf(vf_mul(x, vf_set1(TPI_SQRT_HALF))), vf_set1(0.5f), vf_set1(0.5f));
}

/* x Phi(x); the products with infinite x are 0 and x. */
TPI_LANE_INLINE vf tpi_gelu(vf x)
{
    return vf_mul(vf_max(vf_set1(-1e30f), x), tpi_normal_cdf(x));
}

/* Phi(x) + x phi(x) */
TPI_LANE_INLINE vf tpi_gelu_slope(vf x)
{
    vf near = vf_max(vf_set1(-20.0f), vf_min(vf_set1(20.0f), x)); /* beyond, phi is 0 */
    vf density = vf_mul(vf_exp(vf_mul(vf_mul(near, near), vf_set1(-0.5f))), vf_set1(TPI_NORMAL_PEAK));

    return vf_fma(near, density, tpi_normal_cdf(x));
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
TPI_LANE_INLINE vf tpi_gelu_tanh_inner(vf x)
{
    vf cube = vf_mul(vf_mul(x, x), vf_set1(TPI_GELU_CUBE));

    return vf_mul(vf_fma(cube, x, x), vf_set1(TPI_GELU_SQRT));
}

TPI_LANE_INLINE vf tpi_gelu_tanh(vf x)
{
    vf t = vf_tanh(tpi_gelu_tanh_inner(x));

    return vf_mul(vf_max(vf_set1(-1e30f), x), vf_fma(t, vf_set1(0.5f), vf_set1(0.5f)));
}

TPI_LANE_INLINE vf tpi_gelu_tanh_slope(vf x)
{
    const vf one = vf_set1(1.0f), half = vf_set1(0.5f);
    vf near = vf_max(vf_set1(-20.0f), vf_min(vf_set1(20.0f), x)); /* beyond, tanh is flat */
    vf t = vf_tanh(tpi_gelu_tanh_inner(near));
    vf inner_slope = vf_fma(vf_mul(near, near), vf_set1(3.0f * TPI_GELU_CUBE * TPI_GELU_SQRT), vf_set1(TPI_GELU_SQRT));
    vf tanh_slope = vf_mul(vf_sub(one, t), vf_add(one, t));

    return vf_fma(vf_mul(vf_mul(near, half), tanh_slope), inner_slope, vf_fma(t, half, half));
}

TPI_LANE_INLINE vf tpi_silu(vf x)
{
    return vf_mul(vf_max(vf_set1(-1e30f), x), vf_sigmoid(x));
}

/* s + x s (1 - s), s(x) s(-x) = t / (1 + t)^2 with t = e^-|x| */
TPI_LANE_INLINE vf tpi_silu_slope(vf x)
{
    const vf one = vf_set1(1.0f);
    vf near = vf_max(vf_set1(-200.0f), vf_min(vf_set1(200.0f), x)); /* beyond, s (1 - s) is 0 */
    vf t = vf_exp(vf_neg(vf_abs(x))), r = vf_div(one, vf_add(one, t)), other = vf_mul(t, r);
    vf s = vf_select(vf_lt(x, vf_zero()), other, r);

    return vf_fma(vf_mul(near, r), other, s);
}

/* act(x). NaN stays NaN. */
TPI_LANE_INLINE vf tpi_activation_value(tpi_activation activation, vf x)
{
    switch (activation) {
    case TPI_ACT_GELU: return tpi_gelu(x);
    case TPI_ACT_GELU_TANH: return tpi_gelu_tanh(x);
    case TPI_ACT_RELU: return vf_max(vf_zero(), x);
    case TPI_ACT_RELU2: {
        vf positive = vf_max(vf_zero(), x);
        return vf_mul(positive, positive);
    }
    case TPI_ACT_SILU: return tpi_silu(x);
    default: return x;
    }
}

/* act'(x); that of ReLU at 0 is 0. */
TPI_LANE_INLINE vf tpi_activation_slope(tpi_activation activation, vf x)
{
    switch (activation) {
    case TPI_ACT_GELU: return tpi_gelu_slope(x);
    case TPI_ACT_GELU_TANH: return tpi_gelu_tanh_slope(x);
    case TPI_ACT_RELU: return vf_select(vf_le(x, vf_zero()), vf_zero(), vf_select(vf_eq(x, x), vf_set1(1.0f), x));
    case TPI_ACT_RELU2: return vf_mul(vf_set1(2.0f), vf_max(vf_zero(), x));
    case TPI_ACT_SILU: return tpi_silu_slope(x);
    default: return vf_set1(1.0f);
    }
}

#endif
