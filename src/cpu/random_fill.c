/* Normal random values on global indices: the numbers of tp_random_normal, two at a time. */
#include "core/trig.h"
#include "cpu/cpu.h"
#include "cpu/random_math.h"
#include "cpu/tiles.h"

typedef struct random_fill_work {
    const tpi_random_fill_args *args;
    tpi_tiles tiles;
} random_fill_work;

enum { PAIRS = 8 };

/* The radius of tpi_normal_pair, with its exponent taken apart by operations that every vector set has. */
static inline double radius_of(uint32_t word)
{
    static const uint64_t root_half = 0x3fe6a09e667f3bcdu, two_to_52 = 0x4330000000000000u;
    double count = (double)word + 1.0, m, power; /* 2^-32 of it */
    uint64_t bits;

    memcpy(&bits, &count, sizeof bits);
    uint64_t exponent = (bits - root_half) >> 52, mantissa = bits - (exponent << 52), sum = exponent | two_to_52;
    memcpy(&m, &mantissa, sizeof m);
    memcpy(&power, &sum, sizeof power);
    return sqrt(-2.0 * tpi_log_of(power - (0x1p52 + 32.0), m));
}

/* Sixteen values from sixteen words: the numbers of tpi_normal_pair, in a form that the compiler vectorises. */
static void normal_pairs(const uint32_t word[2 * PAIRS], float value[2 * PAIRS])
{
    float even[PAIRS], odd[PAIRS];

    for (int i = 0; i < PAIRS; i++) {
        double radius = radius_of(word[2 * i]);
        tpi_direction direction = tpi_direction_of_turns(word[2 * i + 1]);

        even[i] = (float)(radius * direction.cosine);
        odd[i] = (float)(radius * direction.sine);
    }
    for (int i = 0; i < PAIRS; i++) {
        value[2 * i] = even[i];
        value[2 * i + 1] = odd[i];
    }
}

/* n values of elements index.., n <= 16. */
static vf normals(tpi_random_source *source, uint64_t index, int n)
{
    uint32_t word[4 * PAIRS];
    float value[2 * PAIRS + 2];
    uint64_t even = index & ~(uint64_t)1;
    int odd = (int)(index - even);

    vi_store(word, tpi_random_words16(source, even));
    normal_pairs(word, value);
    value[2 * PAIRS] = 0;
    if (odd + n > TPI_LANES) {
        vi_store(word + 2 * PAIRS, tpi_random_words16(source, even + TPI_LANES));
        tpi_normal_pair(word[2 * PAIRS], word[2 * PAIRS + 1], value + 2 * PAIRS);
    }
    return vf_load(value + odd);
}

static void random_fill_part(void *arg, int64_t part, int worker)
{
    const random_fill_work *work = arg;
    const tpi_random_fill_args *args = work->args;
    tpi_tile tile = tpi_tile_at(&work->tiles, part);
    tpi_random_source source;

    (void)worker;
    tpi_random_source_init(&source, args->key);
    for (int64_t row = tile.row; row < tile.row_end; row++) {
        uint64_t first = (uint64_t)(args->first_row + row) * (uint64_t)args->total_cols + (uint64_t)args->first_col;

        for (int64_t col = tile.col; col < tile.col_end; col += TPI_LANES) {
            int n = tpi_lanes_of(tile.col_end - col);
            vf x = vf_mul(normals(&source, first + (uint64_t)col, n), vf_set1(args->std));

            vf_store_any(tpi_element_of(args->out, args->dtype, row * args->stride + col), args->dtype, x, n);
        }
    }
}

tp_status CPU(random_fill)(tp_ctx *ctx, const void *args)
{
    tpi_random_fill_args fill = *(const tpi_random_fill_args *)args;
    random_fill_work work = {.args = &fill};

    if (fill.total_cols == 0)
        fill.total_cols = fill.cols;
    work.tiles = tpi_tiles_of(fill.rows, fill.cols);
    tpi_cpu_parallel(ctx, work.tiles.parts, random_fill_part, &work);
    return TP_OK;
}
