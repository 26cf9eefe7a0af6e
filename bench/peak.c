/* Loops that only multiply and add, in registers: what a core can do at most. */
#include "machine.h"

#include "cpu/exact_fma.h"
#include "measure.h"

#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Twelve chains hide the latency of four cycles on two units. Their number and the vector's width are in flops
 * below. */
#define CHAINS 12

/* Keeps a value, and all that led to it, from being optimised away. */
#define KEEP(vector) __asm__ volatile("" : "+x"(vector))

#if defined(__x86_64__)

__attribute__((target("avx512f"))) static double fma_avx512(long rounds)
{
    __m512 sum[CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (long round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_fmadd_ps(sum[i], a, b);
    }
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" : "+v"(sum[i]));
    return (double)rounds * CHAINS * 16 * 2;
}

__attribute__((target("avx512f,avx512bf16"))) static double dot_avx512_bf16(long rounds)
{
    __m512 sum[CHAINS];
    __m512bh a = (__m512bh)_mm512_setzero_si512();
    __asm__ volatile("" : "+v"(a));
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (long round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], a, a);
    }
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" : "+v"(sum[i]));
    return (double)rounds * CHAINS * 32 * 2;
}

__attribute__((target("avx2,fma"))) static double fma_avx2(long rounds)
{
    __m256 sum[CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (long round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm256_fmadd_ps(sum[i], a, b);
    }
    for (int i = 0; i < CHAINS; i++)
        KEEP(sum[i]);
    return (double)rounds * CHAINS * 8 * 2;
}

#if TPI_EXACT_FMA
/* What the portable kernels do in place of a fused operation: blocks of sums as gemm_exact.c has them, with operands in
 * registers. */
static double exact_f32(long rounds)
{
    enum { ROWS = 6 };
    tpi_pair sum[ROWS], a[ROWS], b = {0.001, 0.002};
    tpi_pair_words middles = {0};
    for (int i = 0; i < ROWS; i++) {
        sum[i] = (tpi_pair){i, i + 1};
        a[i] = (tpi_pair){(double)(0.9f + 0.01f * (float)i), 0.5};
    }
    for (long round = 0; round < rounds; round++) {
        KEEP(b);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
            sum[i] = tpi_pair_middle_step(a[i], b, sum[i], &middles);
    }
    for (int i = 0; i < ROWS; i++)
        KEEP(sum[i]);
    KEEP(middles);
    return (double)rounds * ROWS * 2 * 2;
}

static double exact_narrow(long rounds)
{
    enum { ROWS = 4, PAIRS = 2 };
    tpi_pair sum[ROWS][PAIRS], a[ROWS], b[PAIRS] = {{0.5, 0.25}, {0.125, 0.75}};
    for (int i = 0; i < ROWS; i++) {
        sum[i][0] = sum[i][1] = (tpi_pair){i, i + 1};
        a[i] = (tpi_pair){0.5 + i, 0.5};
    }
    for (long round = 0; round < rounds; round++) {
        KEEP(b[0]);
        KEEP(b[1]);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
            for (int j = 0; j < PAIRS; j++)
                sum[i][j] = tpi_pair_narrow_step(a[i], b[j], sum[i][j]);
    }
    for (int i = 0; i < ROWS; i++) {
        KEEP(sum[i][0]);
        KEEP(sum[i][1]);
    }
    return (double)rounds * ROWS * PAIRS * 2 * 2;
}
#else
/* SSE2 is what any x86-64 has: no fused operation. */
static double multiply_add_sse2(long rounds)
{
    __m128 sum[CHAINS], a = _mm_set1_ps(0.999f), b = _mm_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm_set1_ps((float)i);
    for (long round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm_add_ps(_mm_mul_ps(sum[i], a), b);
    }
    for (int i = 0; i < CHAINS; i++)
        KEEP(sum[i]);
    return (double)rounds * CHAINS * 4 * 2;
}
#endif

#else

static double multiply_add(long rounds)
{
    float sum[CHAINS * 4];
    volatile float a = 0.999f, b = 0.001f;
    float factor = a, addend = b;
    for (int i = 0; i < CHAINS * 4; i++)
        sum[i] = (float)i;
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < CHAINS * 4; i++)
            sum[i] = sum[i] * factor + addend;
    volatile float kept = 0;
    for (int i = 0; i < CHAINS * 4; i++)
        kept = kept + sum[i];
    return (double)rounds * CHAINS * 4 * 2;
}

#endif

bench_peak bench_peak_of(tp_isa isa, tp_dtype dtype)
{
    if (isa == TP_ISA_AUTO)
        isa = bench_machine_look().isa;
#if defined(__x86_64__)
    if (isa == TP_ISA_AVX512_BF16 && dtype == TP_DTYPE_BF16)
        return (bench_peak){"AVX512-BF16 dot products", dot_avx512_bf16};
    if (isa >= TP_ISA_AVX512)
        return (bench_peak){"AVX-512 FMA", fma_avx512};
    if (isa == TP_ISA_AVX2)
        return (bench_peak){"AVX2 FMA", fma_avx2};
#if TPI_EXACT_FMA
    if (dtype != TP_DTYPE_F32)
        return (bench_peak){"exact FMA of 16-bit values by SSE2", exact_narrow};
    return (bench_peak){"exact FMA by SSE2", exact_f32};
#else
    return (bench_peak){"SSE2 multiply and add", multiply_add_sse2};
#endif
#else
    (void)dtype;
    return (bench_peak){"multiply and add", multiply_add};
#endif
}

long bench_peak_rounds(const bench_peak *peak)
{
    for (long rounds = 1024;; rounds *= 2) {
        double start = bench_now();
        peak->run(rounds);
        double seconds = bench_now() - start;
        if (seconds > 1e-4)
            return (long)((double)rounds * 2e-4 / seconds) + 1;
    }
}

typedef struct peak_run {
    const bench_peak *peak;
    double seconds;
    double rate[BENCH_SAMPLES]; /* by thread */
} peak_run;

static void peak_thread(void *arg, int index)
{
    peak_run *run = arg;
    bench_samples samples = {0};
    long rounds = bench_peak_rounds(run->peak);
    double flops = 0;
    for (double begin = bench_now(); samples.count < BENCH_SAMPLES && bench_now() - begin < run->seconds;) {
        bool clean;
        const bench_watch watch = bench_watch_start(BENCH_OWN_THREAD);
        flops = run->peak->run(rounds);
        double seconds = bench_watch_stop(&watch, &clean);
        bench_sample_add(&samples, seconds, clean);
    }
    run->rate[index] = flops / bench_sample_figure(&samples).seconds;
}

double bench_peak_together(const bench_peak *peak, int threads, double seconds)
{
    peak_run run = {.peak = peak, .seconds = seconds};
    if (threads > BENCH_SAMPLES || !bench_together(threads, true, peak_thread, &run))
        return 0;
    double sum = 0;
    for (int i = 0; i < threads; i++)
        sum += run.rate[i];
    return sum;
}

double bench_peak_measure(const bench_peak *peak, double seconds)
{
    peak_run run = {.peak = peak, .seconds = seconds};
    peak_thread(&run, 0);
    return run.rate[0];
}

#if defined(__x86_64__)
/* Each addition needs the one before: one cycle each. */
static void additions(long rounds)
{
    unsigned long value = (unsigned long)rounds;
    for (long round = 0; round < rounds; round++)
        __asm__ volatile("add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\t"
                         "add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\t"
                         "add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\t"
                         "add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0"
                         : "+r"(value));
}

double bench_clock_measure(double seconds)
{
    const long rounds = 40000;
    bench_samples samples = {0};
    for (double begin = bench_now(); samples.count < BENCH_SAMPLES && bench_now() - begin < seconds;) {
        bool clean;
        const bench_watch watch = bench_watch_start(BENCH_OWN_THREAD);
        additions(rounds);
        double taken = bench_watch_stop(&watch, &clean);
        bench_sample_add(&samples, taken, clean);
    }
    return (double)rounds * 16 / bench_sample_figure(&samples).seconds;
}
#else
double bench_clock_measure(double seconds)
{
    (void)seconds;
    return 0;
}
#endif
