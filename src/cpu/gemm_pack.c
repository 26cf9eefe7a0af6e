/* Packing of GEMM operands into panels of steps: k-contiguous sources are transposed in registers, others copied step
 * by step. */
#include "cpu/gemm.h"
#include "cpu/simd.h"

#if TPI_ISA_LEVEL >= 2
#include "cpu/gemm_transpose.h"
#endif

/* Inner elements packed at a time when the source is contiguous along the other dimension, so that its lines stay in L1
 * for all panels. */
#define TILE_STEPS 16
/* Elements k, k + 1, ... of outer indices o .. o + outers - 1 in one panel, the rest of it being zeros, or in several
 * panels of TPI_GEMM_ROWS. */
typedef struct stretch {
    const char *base; /* element (o, k) */
    int64_t outer_bytes, inner_bytes;
    int outers, width;
    int64_t elements;
    uint32_t *out; /* step of element k */
    int64_t panel_stride;
    bool streaming;
} stretch;

/* Sixteen values of a step. Streaming: past the caches, for what is not read soon. */
static inline void store_values(uint32_t *out, vi x, bool streaming)
{
#if TPI_ISA_LEVEL >= 2
    if (streaming) {
        _mm512_stream_si512((__m512i *)out, x);
        return;
    }
#else
    (void)streaming;
#endif
    vi_store(out, x);
}

/* ---- one element ---- */

/* An element as the kernel wants it: f32 bits, or a bf16 pair's high half. */
static inline uint32_t element_bits(const void *element, const tpi_gemm_format format)
{
    uint16_t half;
    uint32_t bits;
    float wide;
    switch (format) {
    case TPI_GEMM_F32: memcpy(&bits, element, sizeof bits); return bits;
    case TPI_GEMM_F16:
        memcpy(&half, element, sizeof half);
        wide = tp_f32_from_f16(half);
        memcpy(&bits, &wide, sizeof bits);
        return bits;
    default: memcpy(&half, element, sizeof half); return (uint32_t)half << 16;
    }
}

/* The second element of pairs whose first is there already: blocks whose segments have odd lengths. */
static void pack_second_halves(const stretch *s)
{
    for (int i = 0; i < s->outers && i < s->width; i++)
        s->out[i] |= element_bits(s->base + i * s->outer_bytes, TPI_GEMM_BF16_PAIRS) >> 16;
}

/* ---- contiguous along the outer dimension ---- */

/* Up to 16 outers of one step. second: the pair's other element, or NULL. */
static inline vi load_outers(const char *first, const char *second, int n, const tpi_gemm_format format)
{
    switch (format) {
    case TPI_GEMM_F32: return n >= TPI_LANES ? vi_load(first) : vi_load_n(first, n);
    case TPI_GEMM_F16: return vf_bits(n >= TPI_LANES ? vf_load_f16(first) : vf_load_f16_n(first, n));
    case TPI_GEMM_BF16: return vf_bits(n >= TPI_LANES ? vf_load_bf16(first) : vf_load_bf16_n(first, n));
    default: break;
    }
    vi high = vf_bits(n >= TPI_LANES ? vf_load_bf16(first) : vf_load_bf16_n(first, n));
    if (second == NULL)
        return high;
    vi low = vf_bits(n >= TPI_LANES ? vf_load_bf16(second) : vf_load_bf16_n(second, n));
    return vi_or(high, vi_shift_right(low, 16));
}

/* A panel of B, or of A where stores of parts of a register are cheap. */
static inline __attribute__((always_inline)) void pack_outer_any(const stretch *s, const tpi_gemm_format format)
{
    const int per_step = format == TPI_GEMM_BF16_PAIRS ? 2 : 1;
    uint32_t *out = s->out;
    for (int64_t k = 0; k < s->elements; k += per_step, out += s->width) {
        const char *first = s->base + k * s->inner_bytes;
        const char *second = k + 1 < s->elements ? first + s->inner_bytes : NULL;
        for (int i = 0; i < s->width; i += TPI_LANES) {
            const char *other = second == NULL ? NULL : second + i * s->outer_bytes;
            vi x = load_outers(first + i * s->outer_bytes, other, s->outers - i, format);
            __builtin_prefetch(first + i * s->outer_bytes + TILE_STEPS * s->inner_bytes);
            if (s->width - i >= TPI_LANES)
                store_values(out + i, x, s->streaming);
            else
                vi_store_n(out + i, x, s->width - i);
        }
    }
}

#if TPI_ISA_LEVEL >= 2
#define GROUP_OUTERS (TPI_GEMM_GROUP * TPI_GEMM_ROWS)

/* A group of panels of A through a buffer in L1. Eight lanes are moved: the next step's values take the place of the
 * last two, and after the last step there is room between the panels. */
static inline __attribute__((always_inline)) void pack_outer_rows(const stretch *s, const tpi_gemm_format format)
{
    uint32_t buffer[TILE_STEPS][GROUP_OUTERS + 8] __attribute__((aligned(64)));
    const int per_step = format == TPI_GEMM_BF16_PAIRS ? 2 : 1;
    const int panels = (s->outers + TPI_GEMM_ROWS - 1) / TPI_GEMM_ROWS;
    int steps = 0;
    for (int64_t k = 0; k < s->elements; k += per_step, steps++) {
        const char *first = s->base + k * s->inner_bytes;
        const char *second = k + 1 < s->elements ? first + s->inner_bytes : NULL;
        for (int i = 0; i < panels * TPI_GEMM_ROWS; i += TPI_LANES) {
            const char *other = second == NULL ? NULL : second + i * s->outer_bytes;
            __builtin_prefetch(first + TILE_STEPS * per_step * s->inner_bytes + i * s->outer_bytes);
            if (per_step == 2)
                __builtin_prefetch(first + (TILE_STEPS * per_step + 1) * s->inner_bytes + i * s->outer_bytes);
            vi x = i < s->outers ? load_outers(first + i * s->outer_bytes, other, s->outers - i, format) : vi_set1(0);
            vi_store(&buffer[steps][i], x);
        }
    }
    for (int p = 0; p < panels; p++) {
        const uint32_t *from = buffer[0] + p * TPI_GEMM_ROWS;
        uint32_t *out = s->out + p * s->panel_stride;
        for (int k = 0; k < steps; k++, from += GROUP_OUTERS + 8, out += TPI_GEMM_ROWS)
            _mm256_storeu_si256((__m256i *)out, _mm256_loadu_si256((const __m256i *)from));
    }
}
#endif

static inline __attribute__((always_inline)) void pack_outer_contiguous(const stretch *s, const tpi_gemm_format format)
{
#if TPI_ISA_LEVEL >= 2
    if (s->width == TPI_GEMM_ROWS) {
        pack_outer_rows(s, format);
        return;
    }
#endif
    pack_outer_any(s, format);
}

/* ---- contiguous along the inner dimension ---- */

#if TPI_ISA_LEVEL >= 2
/* 16 steps of one outer index, zeros after `left` elements. */
static inline __m512i load_steps(const char *row, int64_t left, const tpi_gemm_format format)
{
    __mmask16 mask = left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
    switch (format) {
    case TPI_GEMM_F32: return _mm512_maskz_loadu_epi32(mask, row);
    case TPI_GEMM_F16: return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row)));
    case TPI_GEMM_BF16: return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row)), 16);
    default: break;
    }
    __mmask32 pairs = left >= 32 ? 0xffffffffu : (__mmask32)((1u << left) - 1);
    return _mm512_rol_epi32(_mm512_maskz_loadu_epi16(pairs, row), 16);
}

static inline __attribute__((always_inline)) void pack_columns(const stretch *s, const tpi_gemm_format format)
{
    const int per_step = format == TPI_GEMM_BF16_PAIRS ? 2 : 1;
    const int element_bytes = format == TPI_GEMM_F32 ? 4 : 2;
    for (int64_t k = 0; k < s->elements; k += 16 * per_step) {
        int64_t left = s->elements - k;
        int64_t steps = (left + per_step - 1) / per_step;
        int columns = steps < 16 ? (int)steps : 16;
        uint32_t *out = s->out + k / per_step * s->width;
        for (int o = 0; o < s->width; o += 16) {
            __m512i r[16];
            for (int i = 0; i < 16; i++)
                r[i] = o + i < s->outers
                           ? load_steps(s->base + (o + i) * s->outer_bytes + k * element_bytes, left, format)
                           : _mm512_setzero_si512();
            tpi_gemm_transpose16(r);
            if (columns == 16)
                for (int i = 0; i < 16; i++)
                    store_values(out + i * s->width + o, r[i], s->streaming);
            else
                for (int i = 0; i < columns; i++)
                    _mm512_storeu_si512(out + i * s->width + o, r[i]);
        }
    }
}

static inline __attribute__((always_inline)) void pack_rows(const stretch *s, const tpi_gemm_format format)
{
    const int per_step = format == TPI_GEMM_BF16_PAIRS ? 2 : 1;
    const int element_bytes = format == TPI_GEMM_F32 ? 4 : 2;
    for (int64_t k = 0; k < s->elements; k += 16 * per_step) {
        int64_t left = s->elements - k;
        int64_t steps = (left + per_step - 1) / per_step;
        int elements = steps < 16 ? (int)steps * TPI_GEMM_ROWS : 16 * TPI_GEMM_ROWS;
        uint32_t *out = s->out + k / per_step * TPI_GEMM_ROWS;
        __m512i r[TPI_GEMM_ROWS], x[TPI_GEMM_ROWS];
        for (int i = 0; i < TPI_GEMM_ROWS; i++)
            r[i] = i < s->outers ? load_steps(s->base + i * s->outer_bytes + k * element_bytes, left, format)
                                 : _mm512_setzero_si512();
        tpi_gemm_transpose6(r, x);
        if (elements == 16 * TPI_GEMM_ROWS)
            for (int i = 0; i < TPI_GEMM_ROWS; i++)
                _mm512_storeu_si512(out + 16 * i, x[i]);
        else
            for (int i = 0; i < TPI_GEMM_ROWS; i++)
                vi_store_n(out + 16 * i, x[i], elements - 16 * i);
    }
}

static inline __attribute__((always_inline)) void pack_inner_contiguous(const stretch *s, const tpi_gemm_format format)
{
    if (s->width == TPI_GEMM_ROWS)
        pack_rows(s, format);
    else
        pack_columns(s, format);
}
#else
static inline __attribute__((always_inline)) void pack_inner_contiguous(const stretch *s, const tpi_gemm_format format)
{
    const int element_bytes = format == TPI_GEMM_F32 ? 4 : 2;
    for (int i = 0; i < s->width; i++) {
        const char *row = s->base + i * s->outer_bytes;
        uint32_t *out = s->out + i;
        if (i >= s->outers)
            for (int64_t k = 0; k < s->elements; k++)
                out[k * s->width] = 0;
        else
            for (int64_t k = 0; k < s->elements; k++)
                out[k * s->width] = element_bits(row + k * element_bytes, format);
    }
}
#endif

/* ---- whole panels ---- */

static void pack_stretch(const stretch *s, tpi_gemm_format format)
{
    const int64_t element_bytes = format == TPI_GEMM_F32 ? 4 : 2;
    const bool inner_contiguous = s->inner_bytes == element_bytes;
    switch (format) {
    case TPI_GEMM_F32:
        inner_contiguous ? pack_inner_contiguous(s, TPI_GEMM_F32) : pack_outer_contiguous(s, TPI_GEMM_F32);
        return;
    case TPI_GEMM_F16:
        inner_contiguous ? pack_inner_contiguous(s, TPI_GEMM_F16) : pack_outer_contiguous(s, TPI_GEMM_F16);
        return;
    case TPI_GEMM_BF16:
        inner_contiguous ? pack_inner_contiguous(s, TPI_GEMM_BF16) : pack_outer_contiguous(s, TPI_GEMM_BF16);
        return;
    case TPI_GEMM_BF16_PAIRS:
#if TPI_ISA_LEVEL >= 3
        inner_contiguous ? pack_inner_contiguous(s, TPI_GEMM_BF16_PAIRS)
                         : pack_outer_contiguous(s, TPI_GEMM_BF16_PAIRS);
#endif
        return;
    }
}

/* Elements that are packed at a time. */
static int64_t stretch_elements(const tpi_gemm_pack_job *job)
{
    if (job->operand->inner_stride == 1 || (job->width != TPI_GEMM_ROWS && job->count <= job->width))
        return INT64_MAX;
    return TILE_STEPS * job->plan->per_step;
}

/* Outer indices that are packed at a time. */
static int stretch_outers(const tpi_gemm_pack_job *job)
{
#if TPI_ISA_LEVEL >= 2
    if (job->operand->inner_stride != 1 && job->width == TPI_GEMM_ROWS)
        return GROUP_OUTERS;
#endif
    return job->width;
}

/* Positions [from, to) of one run, in every panel. */
static void pack_run(const tpi_gemm_pack_job *job, const tpi_gemm_run *run, int64_t from, int64_t to)
{
    const tpi_gemm_plan *plan = job->plan;
    const tpi_operand *operand = job->operand;
    const int64_t element_bytes = plan->format == TPI_GEMM_F32 ? 4 : 2;
    const int64_t start = job->first_step * plan->per_step, most = stretch_elements(job);
    const int group = stretch_outers(job);
    stretch s = {.outer_bytes = operand->outer_stride * element_bytes,
                 .inner_bytes = operand->inner_stride * element_bytes,
                 .width = job->width,
                 .panel_stride = job->panel_stride,
                 .streaming = job->streaming && (uintptr_t)job->out % 64 == 0};
    for (int64_t at = from; at < to; at += s.elements) {
        bool second = (at - start) % plan->per_step != 0;
        s.elements = second ? 1 : to - at < most ? to - at : most;
        for (int64_t o = 0; o < job->count; o += second ? job->width : group) {
            int64_t k = run->begin + at - run->position, left = job->count - o;
            s.outers = (int)(left < group ? left : group);
            s.base = (const char *)operand->data + (job->first + o) * s.outer_bytes + k * s.inner_bytes;
            s.out =
                (uint32_t *)job->out + o / job->width * job->panel_stride + (at - start) / plan->per_step * job->width;
            if (second)
                pack_second_halves(&s);
            else
                pack_stretch(&s, plan->format);
        }
    }
}

/* Zeros of a padded or empty block: -0 in A, +0 in B. Their product, -0, changes no sum; +0 would turn a sum of -0 into
 * +0, and a chain that goes on in another call would differ from one that doesn't stop. */
static void pack_zeros(const tpi_gemm_pack_job *job, int64_t from, int64_t to)
{
    const bool pairs = job->plan->per_step == 2;
    const uint32_t zero = job->width != TPI_GEMM_ROWS ? 0 : pairs ? 0x80008000u : 0x80000000u;
    const int64_t start = job->first_step * job->plan->per_step;
    for (int64_t o = 0; o < job->count; o += job->width) {
        uint32_t *panel = (uint32_t *)job->out + o / job->width * job->panel_stride;
        for (int64_t at = from - start; at < to - start; at++) {
            uint32_t *step = panel + at / job->plan->per_step * job->width;
            const bool second = pairs && at % 2 != 0;
            for (int i = 0; i < job->width; i++)
                step[i] = second ? step[i] | (zero & 0xffffu) : zero;
        }
    }
}

void CPU(gemm_pack_panels)(const tpi_gemm_pack_job *job)
{
    const tpi_gemm_plan *plan = job->plan;
    int64_t begin = job->first_step * plan->per_step, end = begin + job->steps * plan->per_step;
    for (int i = 0; i < plan->runs; i++) {
        const tpi_gemm_run *run = &plan->run[i];
        int64_t from = run->position > begin ? run->position : begin;
        int64_t to = run->position + run->length < end ? run->position + run->length : end;
        if (from >= to)
            continue;
        if (run->begin < 0)
            pack_zeros(job, from, to);
        else
            pack_run(job, run, from, to);
    }
#if TPI_ISA_LEVEL >= 2
    if (job->streaming)
        _mm_sfence();
#endif
}

/* ---- row sums ---- */

/* Panels summed side by side: each is one chain of dependent additions. */
#define SUM_PANELS 4

static inline vf first_of_step(const float *step, bool pairs)
{
    vf x = vf_load_n(step, TPI_GEMM_ROWS);
    return pairs ? vf_from_bits(vi_and(vf_bits(x), vi_set1(0xffff0000u))) : x;
}

static inline vf second_of_step(const float *step)
{
    return vf_from_bits(vi_shift_left(vf_bits(vf_load_n(step, TPI_GEMM_ROWS)), 16));
}

static void sum_panels(const tpi_gemm_pack_job *job, int64_t panel, int panels, int64_t elements, float *sums)
{
    const bool pairs = job->plan->per_step == 2;
    vf sum[SUM_PANELS];
    int rows[SUM_PANELS];
    for (int p = 0; p < panels; p++) {
        int64_t left = job->count - (panel + p) * TPI_GEMM_ROWS;
        rows[p] = left < TPI_GEMM_ROWS ? (int)left : TPI_GEMM_ROWS;
        sum[p] = vf_load_n(sums + (panel + p) * TPI_GEMM_ROWS, rows[p]);
    }
    const float *step = job->out + panel * job->panel_stride;
    for (int64_t k = 0; k < elements; k += job->plan->per_step, step += TPI_GEMM_ROWS) {
        for (int p = 0; p < panels; p++)
            sum[p] = vf_add(sum[p], first_of_step(step + p * job->panel_stride, pairs));
        for (int p = 0; p < panels && pairs && k + 1 < elements; p++)
            sum[p] = vf_add(sum[p], second_of_step(step + p * job->panel_stride));
    }
    for (int p = 0; p < panels; p++)
        vf_store_n(sums + (panel + p) * TPI_GEMM_ROWS, sum[p], rows[p]);
}

void CPU(gemm_row_sums)(const tpi_gemm_pack_job *job, int64_t inner, float *sums)
{
    int64_t begin = job->first_step * job->plan->per_step;
    int64_t length = job->steps * job->plan->per_step;
    int64_t elements = inner - begin < length ? inner - begin : length;
    int64_t panels = (job->count + TPI_GEMM_ROWS - 1) / TPI_GEMM_ROWS;
    for (int64_t panel = 0; panel < panels; panel += SUM_PANELS) {
        int n = panels - panel < SUM_PANELS ? (int)(panels - panel) : SUM_PANELS;
        if (n == SUM_PANELS)
            sum_panels(job, panel, SUM_PANELS, elements, sums);
        else
            sum_panels(job, panel, n, elements, sums);
    }
}
