/* Which instruction sets this machine and its operating system have. */
#include "cpu/state.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern const tpi_cpu_table tpi_cpu_table_portable;
#if defined(__x86_64__)
extern const tpi_cpu_table tpi_cpu_table_avx2, tpi_cpu_table_avx512, tpi_cpu_table_avx512_bf16;
#endif

static const char *const isa_names[TP_ISA_COUNT] = {
    [TP_ISA_AUTO] = "auto",     [TP_ISA_PORTABLE] = "portable",       [TP_ISA_AVX2] = "avx2",
    [TP_ISA_AVX512] = "avx512", [TP_ISA_AVX512_BF16] = "avx512_bf16",
};

static const tpi_cpu_table *const isa_tables[TP_ISA_COUNT] = {
    [TP_ISA_PORTABLE] = &tpi_cpu_table_portable,
#if defined(__x86_64__)
    [TP_ISA_AVX2] = &tpi_cpu_table_avx2,
    [TP_ISA_AVX512] = &tpi_cpu_table_avx512,
    [TP_ISA_AVX512_BF16] = &tpi_cpu_table_avx512_bf16,
#endif
};

const char *tp_isa_name(tp_isa isa)
{
    return (int)isa >= 0 && (int)isa < TP_ISA_COUNT ? isa_names[isa] : "invalid";
}

const tpi_cpu_table *tpi_cpu_table_of(const tp_ctx *ctx)
{
    return isa_tables[ctx->desc.isa];
}

#if defined(__x86_64__)
#define BITS(value, mask) (((value) & (mask)) == (mask))

/* Registers that the operating system saves when it switches threads. */
static uint32_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static tp_isa detect(void)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const uint32_t ymm = 0x6, zmm = 0xe6;
    const uint32_t avx2 = 1u << 5, avx512f = 1u << 16, avx512dq = 1u << 17, avx512bw = 1u << 30, avx512vl = 1u << 31;
    const uint32_t avx512bf16 = 1u << 5;
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !BITS(ecx, fma | osxsave | avx | f16c) ||
        !BITS(saved_registers(), ymm))
        return TP_ISA_PORTABLE;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !BITS(ebx, avx2))
        return TP_ISA_PORTABLE;
    if (!BITS(ebx, avx512f | avx512dq | avx512bw | avx512vl) || !BITS(saved_registers(), zmm))
        return TP_ISA_AVX2;
    bool has_leaf = eax >= 1;
    if (!has_leaf || !__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !BITS(eax, avx512bf16))
        return TP_ISA_AVX512;
    return TP_ISA_AVX512_BF16;
}
#else
static tp_isa detect(void)
{
    return TP_ISA_PORTABLE;
}
#endif

tp_isa tpi_cpu_best_isa(void)
{
    return detect();
}

/* Each set contains those before it. */
bool tp_isa_available(tp_isa isa)
{
    return (int)isa >= 0 && isa <= detect();
}
