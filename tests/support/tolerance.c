#include "tolerance.h"

#include <float.h>

double tpt_tolerance(tp_dtype dtype, int64_t inner, double magnitude)
{
    double unit = FLT_EPSILON / 2.0;
    double terms = (double)(inner < 1 ? 1 : inner);
    double chain = terms * unit / (1.0 - terms * unit);
    double rounding = tp_dtype_epsilon(dtype) / 2.0;
    return 2.0 * (chain + rounding) * magnitude + FLT_MIN;
}

double tpt_tolerance_tf32(int64_t inner, double magnitude)
{
    const double half = 0x1p-11, terms = (1.0 + half) * (1.0 + half) - 1.0;
    return tpt_tolerance(TP_DTYPE_F32, inner, magnitude * (1.0 + terms)) + 2.0 * terms * magnitude;
}

double tpt_tolerance_chain(tp_dtype dtype, int64_t inner, int depth, double magnitude)
{
    return depth * tpt_tolerance(dtype, inner, magnitude);
}
