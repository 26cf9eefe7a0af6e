/* Activations and their derivatives on 16 lanes. The GEMM's epilogue and activation.c share them, so that fused and
 * separate forms give the same bits. */
#ifndef TPI_CPU_ACTIVATION_MATH_H
#define TPI_CPU_ACTIVATION_MATH_H

#include "core/ops.h"
#include "cpu/vector_math.h"

#define TPI_SQRT_HALF 0x1.6a09e6p-1f   /* sqrt(1/2) */
#define TPI_NORMAL_PEAK 0x1.988454p-2f /* 1/sqrt(2 pi) */
/* Of 2 sqrt(2/pi) (x + 0.044715 x^3) = x (rate + cube x^2), and the same for powers of two. */
#define TPI_GELU_RATE 0x1.988454p0f  /* sqrt(8/pi) */
#define TPI_GELU_CUBE 0x1.2444f2p-4f /* 0.044715 sqrt(8/pi) */
#define TPI_GELU_RATE2 0x1.26aec2p1f /* sqrt(8/pi) / ln(2) */
#define TPI_GELU_CUBE2 0x1.a5a7dp-4f /* 0.044715 sqrt(8/pi) / ln(2) */

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

/* e^-|u| with u = sqrt(8/pi) (x + 0.044715 x^3), of which tanh(u / 2) = 2 / (1 + e^-u) - 1 */
TPI_LANE_INLINE vf tpi_gelu_tanh_power(vf x, vf square)
{
    vf rate = vf_fma(square, vf_set1(TPI_GELU_CUBE2), vf_set1(TPI_GELU_RATE2));

    return tpi_exp2_falling(tpi_minus_size(vf_mul(x, rate)));
}

/* 0.5 x (1 + tanh(u / 2)) = x / (1 + e^-u), which keeps its digits where tanh is near -1. */
TPI_LANE_INLINE vf tpi_gelu_tanh(vf x)
{
    const vf one = vf_set1(1.0f);
    vf t = tpi_gelu_tanh_power(x, vf_mul(x, x));
    vf over = vf_select(vf_lt(x, vf_zero()), t, one);

    return vf_div(vf_mul(vf_max(vf_set1(-1e30f), x), over), vf_add(one, t)); /* the product with infinite x is 0 */
}

/* s + x u' s (1 - s) with s = 1 / (1 + e^-u); s (1 - s) = t / (1 + t)^2 with t = e^-|u| */
TPI_LANE_INLINE vf tpi_gelu_tanh_slope(vf x)
{
    const vf one = vf_set1(1.0f);
    vf near = vf_max(vf_set1(-20.0f), vf_min(vf_set1(20.0f), x)), square = vf_mul(near, near); /* beyond, s is flat */
    vf t = tpi_gelu_tanh_power(near, square), r = vf_div(one, vf_add(one, t)), other = vf_mul(t, r);
    vf climb = vf_mul(near, vf_fma(square, vf_set1(3.0f * TPI_GELU_CUBE), vf_set1(TPI_GELU_RATE)));

    return vf_fma(vf_mul(climb, r), other, vf_select(vf_lt(x, vf_zero()), other, r));
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
    vf t = tpi_exp_falling(tpi_minus_size(x)), r = vf_div(one, vf_add(one, t)), other = vf_mul(t, r);
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
