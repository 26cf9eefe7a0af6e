/* The one place where test tolerances come from: computed from the dtype's epsilon and the length of the inner sum,
 * never tuned. */
#ifndef TPT_TOLERANCE_H
#define TPT_TOLERANCE_H

#include <stdint.h>
#include <tp/dtype.h>

/* Bound of |computed - exact| for an element that is an f32 sum of `inner` products (any order), stored as `dtype`.
 *
 *   magnitude  an upper bound of sum |a_k * b_k| over the element's terms (for one value, inner 1: its own magnitude)
 *
 * A chain of n fused multiply-adds has an error of at most gamma(n) * sum |a_k b_k| with gamma(n) = n u / (1 - n u) and
 * u = eps32 / 2 (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1). One rounding to `dtype` adds
 * half its epsilon of the value. Both are taken twice as large: an op's inputs to the sum (exp, tanh, a scale) carry an
 * error of some roundings themselves. Inputs that were rounded to bf16 or f16 beforehand are exact as far as the bound
 * goes: references must read the rounded values. */
double tpt_tolerance(tp_dtype dtype, int64_t inner, double magnitude);

/* The same for f32 products in TF32, stored as f32: each operand is cut to ten explicit bits of mantissa first, by at
 * most half an epsilon of 2^-10 if it is rounded to nearest, so a term is off by at most (1 + 2^-11)^2 - 1 of itself.
 * Taken twice as large as the others are, that covers hardware that cuts off. */
double tpt_tolerance_tf32(int64_t inner, double magnitude);

/* For values that went through `depth` ops one after the other, each storing `dtype` and summing at most `inner` terms:
 * errors add up. This is for whole layers and models, where magnitude is the largest of the intermediate values. */
double tpt_tolerance_chain(tp_dtype dtype, int64_t inner, int depth, double magnitude);

#endif
