/* exact_fma.h and exact_chain.h give the bits of the C library's fmaf, whatever the operands: middles between floats,
 * true ones and those that only look so, subnormals, infinities, NaN and zeros of both signs. */
#define TPI_ISA_LEVEL 0
#include "cpu/exact_chain.h"
#include "cpu/simd.h"

#include <criterion/criterion.h>

#ifdef TPT_SANITIZED
enum { SUMS = 60000, TILES = 30 };
#else
enum { SUMS = 1000000, TILES = 400 };
#endif

static uint32_t next_word(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 32);
}

/* sign, exponent and fraction from `word`, the exponent in [least, least + span). */
static float of_exponents(uint32_t word, uint32_t least, uint32_t span, uint32_t fraction_mask)
{
    return tpi_float_of((word & 0x80000000u) | (least + (word >> 23) % span) << 23 | (word & fraction_mask));
}

typedef enum value_kind {
    VALUE_ANY,
    VALUE_NEAR_ONE,
    VALUE_TINY,
    VALUE_HUGE,
    VALUE_BF16,
    VALUE_SHORT, /* six bits: sums are often exact, and often on a middle */
    VALUE_SPECIAL,
    VALUE_KINDS
} value_kind;

static float value_of(value_kind kind, uint64_t *state)
{
    static const uint32_t special[] = {0,           1,           0x7fffffu,   0x800000u,   0x800001u,
                                       0x3f800000u, 0x3f800001u, 0x7f7fffffu, 0x7f800000u, 0x7fc00000u};
    const uint32_t word = next_word(state);

    switch (kind) {
    case VALUE_ANY: return tpi_float_of(word);
    case VALUE_NEAR_ONE: return of_exponents(word, 120, 12, 0x7fffffu);
    case VALUE_TINY: return of_exponents(word, 0, 75, 0x7fffffu);
    case VALUE_HUGE: return of_exponents(word, 180, 75, 0x7fffffu);
    case VALUE_BF16: return of_exponents(word, 110, 24, 0x7f0000u);
    case VALUE_SHORT: return of_exponents(word, 100, 40, 0x7c0000u);
    default: return tpi_float_of((word & 0x80000000u) | special[(word >> 8) % (sizeof special / sizeof special[0])]);
    }
}

/* What c is to the product: unrelated, its opposite or nearly so, or such that the product is about half of c's last
 * place. */
static float addend_of(float a, float b, uint64_t *state)
{
    const uint32_t word = next_word(state), product = tpi_bits_of(a * b);

    switch (word % 5) {
    case 0: return value_of((value_kind)(word / 5 % VALUE_KINDS), state);
    case 1: return -(a * b);
    case 2: return tpi_float_of((product + (word >> 8) % 7 - 3) ^ 0x80000000u);
    case 3:
        return tpi_float_of((product & 0xff800000u) + ((22 + (word >> 8) % 4) << 23) +
                            (next_word(state) & 0x807fffffu));
    default:
        return tpi_float_of((product & 0xff800000u) + (((word >> 8) % 64 - 32) << 23) +
                            (next_word(state) & 0x807fffffu));
    }
}

static bool same_value(float got, float want)
{
    return tpi_bits_of(got) == tpi_bits_of(want) || (got != got && want != want);
}

Test(exact_fma, sixteen_lanes_are_those_of_fmaf)
{
    uint64_t state = 1;

    for (int n = 0; n < SUMS; n += 16) {
        float a[16], b[16], c[16], sum[16], difference[16];

        for (int i = 0; i < 16; i++) {
            const uint32_t kinds = next_word(&state);
            a[i] = value_of((value_kind)(kinds % VALUE_KINDS), &state);
            b[i] = value_of((value_kind)(kinds / VALUE_KINDS % VALUE_KINDS), &state);
            c[i] = addend_of(a[i], b[i], &state);
        }
        vf_store(sum, vf_fma(vf_load(a), vf_load(b), vf_load(c)));
        vf_store(difference, vf_fnma(vf_load(a), vf_load(b), vf_load(c)));
        for (int i = 0; i < 16; i++) {
            const float want = fmaf(a[i], b[i], c[i]), other = fmaf(-a[i], b[i], c[i]);
            cr_assert(same_value(sum[i], want), "%a * %a + %a = %a, not %a", (double)a[i], (double)b[i], (double)c[i],
                      (double)want, (double)sum[i]);
            cr_assert(same_value(difference[i], other), "%a - %a * %a = %a, not %a", (double)c[i], (double)a[i],
                      (double)b[i], (double)other, (double)difference[i]);
        }
    }
}

/* Of 1 + 2^-24, 3 + 3 * 2^-23 and the like, and of the smallest float: an error of the first rounding either way
 * decides. */
Test(exact_fma, middles_are_decided_by_what_is_beyond_double)
{
    static const float sums[][4] = {
        {0x1p-12f, 0x1p-12f, 1, 1},                              /* on the middle: to even */
        {0x1p-12f, 0x1p-12f, 0x1.000002p0f, 0x1.000004p0f},      /* the same, upwards */
        {0x1.000002p-12f, 0x1p-12f, 1, 0x1.000002p0f},           /* just above */
        {0x1.fffffep-13f, 0x1p-12f, 0x1.000002p0f, 0x1.000002p0f}, /* just below */
        {0x1.000002p-12f, 0x1.fffffcp-13f, 1, 1},                /* below by 2^-70: double takes it for the middle */
        {0x1.000002p-12f, 0x1.fffffcp-13f, 0x1.000002p0f, 0x1.000002p0f},
        {0x1.000002p-75f, 0x1p-75f, 0, 0x1p-149f},               /* above half of the smallest */
        {0x1p-75f, 0x1p-75f, 0, 0},
        {-0x1p-75f, 0x1p-75f, 0, -0.0f},
        {0x1.000002p-75f, 0x1.fffffcp-76f, 0x1p-149f, 0x1p-149f}, /* below half of it by nearly nothing */
        {0x1.fffffep127f, 1, 0x1p103f, INFINITY},                /* the middle above the largest */
        {0x1.fffffep127f, 1, 0x1.fffffep102f, 0x1.fffffep127f},
        {0x1p-100f, -0x1p-100f, 0, -0.0f},
        {0, -1, 0, 0},
        {0, -1, -0.0f, -0.0f},
    };

    for (size_t n = 0; n < sizeof sums / sizeof sums[0]; n++) {
        const float *s = sums[n];
        float got[16];

        vf_store(got, vf_fma(vf_set1(s[0]), vf_set1(s[1]), vf_set1(s[2])));
        cr_assert(same_value(fmaf(s[0], s[1], s[2]), s[3]), "row %zu is wrong itself", n);
        cr_assert(same_value(got[5], s[3]), "%a * %a + %a = %a, not %a", (double)s[0], (double)s[1], (double)s[2],
                  (double)s[3], (double)got[5]);
    }
}

#if TPI_EXACT_FMA
enum { STEPS = 37 };

typedef struct problem {
    float a[STEPS * TPI_EXACT_ROWS], b[STEPS * TPI_EXACT_COLS], start[TPI_EXACT_TILE];
} problem;

static void make_problem(problem *p, value_kind a, value_kind b, value_kind start, uint64_t *state)
{
    for (int i = 0; i < STEPS * TPI_EXACT_ROWS; i++)
        p->a[i] = value_of(a, state);
    for (int i = 0; i < STEPS * TPI_EXACT_COLS; i++)
        p->b[i] = next_word(state) % 16 == 0 ? 0 : value_of(b, state);
    for (int i = 0; i < TPI_EXACT_TILE; i++)
        p->start[i] = next_word(state) % 4 == 0 ? 0 : value_of(start, state);
}

/* The first `rows` rows by one way and by fmaf. */
static void check_chains(const problem *p, tpi_exact_way way, int rows)
{
    static double a[STEPS * TPI_EXACT_ROWS * 2] __attribute__((aligned(16))),
        b[STEPS * TPI_EXACT_COLS] __attribute__((aligned(16)));
    const tpi_exact_stretch panels = {.steps = STEPS, .a = (const tpi_pair *)a, .b = (const tpi_pair *)b};
    double tile[TPI_EXACT_TILE];

    tpi_exact_widen_twice(p->a, STEPS * TPI_EXACT_ROWS, a);
    tpi_exact_widen(p->b, STEPS * TPI_EXACT_COLS, b);
    tpi_exact_widen(p->start, TPI_EXACT_TILE, tile);
    tpi_exact_run(&panels, way, rows, tile);
    for (int i = 0; i < rows * TPI_EXACT_COLS; i++) {
        float want = p->start[i];
        for (int k = 0; k < STEPS; k++)
            want = fmaf(p->a[k * TPI_EXACT_ROWS + i / TPI_EXACT_COLS], p->b[k * TPI_EXACT_COLS + i % TPI_EXACT_COLS],
                        want);
        cr_assert(same_value((float)tile[i], want), "way %d, element %d: %a, not %a", (int)way, i, tile[i],
                  (double)want);
    }
}

Test(exact_fma, chains_of_any_values)
{
    uint64_t state = 2;

    for (int n = 0; n < TILES; n++) {
        problem p;
        make_problem(&p, (value_kind)(n % VALUE_KINDS), (value_kind)(n / VALUE_KINDS % VALUE_KINDS), VALUE_ANY, &state);
        check_chains(&p, TPI_EXACT_ODD, 1 + n % TPI_EXACT_ROWS);
    }
}

Test(exact_fma, chains_of_sixteen_bit_values_start_from_anything)
{
    uint64_t state = 3;

    for (int n = 0; n < TILES; n++) {
        problem p;
        make_problem(&p, VALUE_BF16, n % 2 ? VALUE_BF16 : VALUE_SHORT, (value_kind)(n % VALUE_KINDS), &state);
        check_chains(&p, TPI_EXACT_NARROW, 1 + n % TPI_EXACT_ROWS);
    }
}

/* The middle way, where the values are fit for it: some of these never are, most always. */
Test(exact_fma, chains_of_fit_values)
{
    int fit = 0;
    uint64_t state = 4;

    for (int n = 0; n < TILES; n++) {
        problem p;
        double start[TPI_EXACT_TILE];
        make_problem(&p, n % 3 ? VALUE_NEAR_ONE : VALUE_TINY, n % 2 ? VALUE_SHORT : VALUE_NEAR_ONE,
                     n % 5 ? VALUE_NEAR_ONE : VALUE_TINY, &state);
        tpi_exact_widen(p.start, TPI_EXACT_TILE, start);
        const int a = tpi_exact_least(p.a, STEPS * TPI_EXACT_ROWS), b = tpi_exact_least(p.b, STEPS * TPI_EXACT_COLS);
        if (tpi_exact_fits(a, b) && tpi_exact_sums_fit(start)) {
            check_chains(&p, TPI_EXACT_MIDDLE, 1 + n % TPI_EXACT_ROWS);
            fit++;
        }
    }
    cr_assert_geq(fit, TILES / 2);
    cr_assert_lt(fit, TILES);
}

/* Products at the very border of what is fit, with sums that cancel to subnormals. */
Test(exact_fma, subnormal_sums_of_the_least_fit_products)
{
    uint64_t state = 5;

    for (int n = 0; n < TILES; n++) {
        problem p;
        make_problem(&p, VALUE_NEAR_ONE, VALUE_NEAR_ONE, VALUE_TINY, &state);
        for (int i = 0; i < STEPS * TPI_EXACT_ROWS; i++)
            p.a[i] = of_exponents(tpi_bits_of(p.a[i]), 75, 1, 0x7fffffu);
        for (int i = 0; i < STEPS * TPI_EXACT_COLS; i++)
            p.b[i] = of_exponents(tpi_bits_of(p.b[i]), 76, 1, 0x7fffffu);
        for (int i = 0; i < TPI_EXACT_TILE; i++)
            p.start[i] = of_exponents(tpi_bits_of(p.start[i]), 20 + (uint32_t)i % 8, 1, 0x7fffffu);
        cr_assert(
            tpi_exact_fits(tpi_exact_least(p.a, STEPS * TPI_EXACT_ROWS), tpi_exact_least(p.b, STEPS * TPI_EXACT_COLS)));
        check_chains(&p, TPI_EXACT_MIDDLE, TPI_EXACT_ROWS);
    }
}

Test(exact_fma, what_is_fit_for_the_middle_way)
{
    cr_assert_eq(tpi_exact_least((const float[]){0, -0.0f}, 2), 255);
    cr_assert_eq(tpi_exact_least((const float[]){0, -1, 4}, 3), 127);
    cr_assert_eq(tpi_exact_least((const float[]){-0x1p-126f, 1}, 2), 1);
    cr_assert_eq(tpi_exact_least((const float[]){1, 0x1p-127f}, 2), 0);
    cr_assert_eq(tpi_exact_least((const float[]){1, 0x1.fffffep49f}, 2), 127);
    cr_assert_eq(tpi_exact_least((const float[]){1, -0x1p50f}, 2), 0);
    cr_assert_eq(tpi_exact_least((const float[]){NAN, 1}, 2), 0);
    cr_assert_eq(tpi_exact_least((const float[]){1, -INFINITY}, 2), 0);
    double sums[TPI_EXACT_TILE] = {[5] = 0x1.fffffep125, [8] = -0x1.fffffep125};
    cr_assert(tpi_exact_sums_fit(sums));
    sums[TPI_EXACT_TILE - 1] = -0x1p126;
    cr_assert(!tpi_exact_sums_fit(sums));
    sums[TPI_EXACT_TILE - 1] = (double)NAN;
    cr_assert(!tpi_exact_sums_fit(sums));
    cr_assert(tpi_exact_fits(75, 76) && tpi_exact_fits(255, 1) && !tpi_exact_fits(75, 75) && !tpi_exact_fits(0, 255));
}
#endif
