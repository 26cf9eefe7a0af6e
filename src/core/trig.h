/* Sine, cosine and logarithm in double, of plain operations only: the same bits on every CPU and GPU, whatever its math
 * library. Errors are a few units of the last place of a double, far below the rounding to f32 that follows everywhere.
 * Compiles as C and CUDA. */
#ifndef TPI_TRIG_H
#define TPI_TRIG_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TPI_PORTABLE static __host__ __device__ __forceinline__
#else
#define TPI_PORTABLE static inline
#endif

typedef struct tpi_direction {
    double cosine, sine;
} tpi_direction;

/* Of quadrant * pi/2 + rest, |rest| at most a little more than pi/4: Taylor series, whose first omitted terms are below
 * 1e-17. */
TPI_PORTABLE tpi_direction tpi_direction_of(unsigned quadrant, double rest)
{
    double z = rest * rest, sine, cosine;

    sine = 1.0 / 355687428096000.0; /* 17! */
    sine = sine * z - 1.0 / 1307674368000.0;
    sine = sine * z + 1.0 / 6227020800.0;
    sine = sine * z - 1.0 / 39916800.0;
    sine = sine * z + 1.0 / 362880.0;
    sine = sine * z - 1.0 / 5040.0;
    sine = sine * z + 1.0 / 120.0;
    sine = sine * z - 1.0 / 6.0;
    sine = rest + rest * (z * sine);
    cosine = 1.0 / 20922789888000.0; /* 16! */
    cosine = cosine * z - 1.0 / 87178291200.0;
    cosine = cosine * z + 1.0 / 479001600.0;
    cosine = cosine * z - 1.0 / 3628800.0;
    cosine = cosine * z + 1.0 / 40320.0;
    cosine = cosine * z - 1.0 / 720.0;
    cosine = cosine * z + 1.0 / 24.0;
    cosine = cosine * z - 0.5;
    cosine = 1.0 + z * cosine;

    tpi_direction result = {quadrant & 1 ? sine : cosine, quadrant & 1 ? cosine : sine};
    if ((quadrant + 1) & 2)
        result.cosine = -result.cosine;
    if (quadrant & 2)
        result.sine = -result.sine;
    return result;
}

/* Of an angle in radians; exact reduction up to some 2^40. */
TPI_PORTABLE tpi_direction tpi_direction_of_angle(double angle)
{
    double quarters = floor(angle * 0x1.45f306dc9c883p-1 + 0.5); /* 2/pi */
    double rest = fma(-quarters, 0x1.1a62633145c07p-54, fma(-quarters, 0x1.921fb54442d18p+0, angle));

    return tpi_direction_of((unsigned)(int64_t)quarters & 3, rest);
}

/* Of word * 2^-32 turns. */
TPI_PORTABLE tpi_direction tpi_direction_of_turns(uint32_t word)
{
    uint32_t quadrant = (word + 0x20000000u) >> 30;
    int32_t rest = (int32_t)(word - (quadrant << 30));

    return tpi_direction_of(quadrant, (double)rest * 0x1.921fb54442d18p-30); /* 2 pi / 2^32 */
}

/* ln of 2^power * m, m in [sqrt(1/2), sqrt(2)), by 2 atanh(s) = 2 s (1 + z/3 + z^2/5 + ...), |s| at most 0.172. */
TPI_PORTABLE double tpi_log_of(double power, double m)
{
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 1.0 / 23.0;

    for (int k = 10; k > 0; k--)
        sum = sum * z + 1.0 / (double)(2 * k + 1);
    return power * 0x1.62e42fefa39efp-1 + (2.0 * s + 2.0 * s * (z * sum));
}

/* ln x for normal positive x. */
TPI_PORTABLE double tpi_log(double x)
{
    uint64_t bits, mantissa;
    int64_t power;
    double m;

    memcpy(&bits, &x, sizeof bits);
    power = (int64_t)(bits - 0x3fe6a09e667f3bcdu) >> 52; /* x = 2^power * m, m in [sqrt(1/2), sqrt(2)) */
    mantissa = bits - ((uint64_t)power << 52);
    memcpy(&m, &mantissa, sizeof m);
    return tpi_log_of((double)power, m);
}

/* Two normal numbers of two random words, by Box-Muller; the first is that of the even element. */
TPI_PORTABLE void tpi_normal_pair(uint32_t first, uint32_t second, float pair[2])
{
    double radius = sqrt(-2.0 * tpi_log(((double)first + 1.0) * 0x1p-32)); /* (0, 1]: never ln 0 */
    tpi_direction direction = tpi_direction_of_turns(second);

    pair[0] = (float)(radius * direction.cosine);
    pair[1] = (float)(radius * direction.sine);
}

#endif
