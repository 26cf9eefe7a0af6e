/* The floating-point mode of a thread: tasks run with the default one (round to nearest, denormals kept), whatever the
 * host program set. */
#ifndef TPI_CPU_FLOAT_MODE_H
#define TPI_CPU_FLOAT_MODE_H

#include <stdbool.h>
#if defined(__x86_64__)
#include <xmmintrin.h>

#define TPI_DEFAULT_MXCSR 0x1f80u
#define TPI_SIGNALLED_MXCSR 0x3fu /* exceptions so far */
#define TPI_FLUSH_MXCSR 0x8040u /* subnormal results and operands */

typedef unsigned tpi_float_mode;

/* Sets the default mode and returns the one before. Exceptions that have been signalled are no mode: writing the
 * register costs more than reading it. */
static inline tpi_float_mode tpi_float_mode_default(void)
{
    tpi_float_mode before = _mm_getcsr();
    if ((before & ~TPI_SIGNALLED_MXCSR) != TPI_DEFAULT_MXCSR)
        _mm_setcsr(TPI_DEFAULT_MXCSR);
    return before;
}

/* Subnormals become zeros, until the mode before is restored. Other architectures keep them. */
static inline tpi_float_mode tpi_float_mode_flush(void)
{
    tpi_float_mode before = _mm_getcsr();
    _mm_setcsr(before | TPI_FLUSH_MXCSR);
    return before;
}

static inline void tpi_float_mode_restore(tpi_float_mode mode)
{
    _mm_setcsr(mode);
}

/* For whoever leaves the default mode as it is: there is nothing to restore. */
static inline bool tpi_float_mode_is_default(tpi_float_mode mode)
{
    return (mode & ~TPI_SIGNALLED_MXCSR) == TPI_DEFAULT_MXCSR;
}
#else
#include <fenv.h>

typedef fenv_t tpi_float_mode;

static inline tpi_float_mode tpi_float_mode_default(void)
{
    tpi_float_mode before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}

static inline tpi_float_mode tpi_float_mode_flush(void)
{
    tpi_float_mode before;
    fegetenv(&before);
    return before;
}

static inline void tpi_float_mode_restore(tpi_float_mode mode)
{
    fesetenv(&mode);
}

static inline bool tpi_float_mode_is_default(tpi_float_mode mode)
{
    (void)mode;
    return false;
}
#endif
#endif
