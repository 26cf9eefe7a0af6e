/* Rotary position embedding. */
#include "core/trig.h"
#include "cpu/cpu.h"
#include "cpu/sequences.h"
#include "cpu/simd.h"

#define PART_ELEMENTS 8192

/* One part is some places of a sequence (all sequences together) where lengths are equal, so that cos and sin are
 * computed once a place; else it is some rows. */
typedef struct rope_work {
    const tpi_rope_args *args;
    tpi_sequences sequences;
    bool by_place;
    int64_t places, part_places;
    const double *frequency; /* [dim/2] */
    tp_ctx *ctx;
} rope_work;

/* cos and sin of one position, each [dim/2]. */
static void rope_angles(const rope_work *work, int64_t position, float *cosine, float *sine)
{
    for (int64_t i = 0; i < work->args->dim / 2; i++) {
        tpi_direction direction = tpi_direction_of_angle((double)position * work->frequency[i]);

        cosine[i] = (float)direction.cosine;
        sine[i] = (float)(work->args->inverse ? -direction.sine : direction.sine);
    }
}

static void rope_row(const tpi_rope_args *args, int64_t row, const float *cosine, const float *sine)
{
    int64_t half = args->dim / 2;

    for (int64_t head = 0; head < args->heads; head++) {
        int64_t at = row * args->stride + head * args->head_dim;

        for (int64_t i = 0; i < half; i += TPI_LANES) {
            int n = tpi_lanes_of(half - i);
            void *first = tpi_element_of(args->x, args->dtype, at + i),
                 *second = tpi_element_of(args->x, args->dtype, at + half + i);
            vf a = vf_load_any(first, args->dtype, n), b = vf_load_any(second, args->dtype, n);
            vf c = vf_load_n(cosine + i, n), s = vf_load_n(sine + i, n);

            vf_store_any(first, args->dtype, vf_fnma(b, s, vf_mul(a, c)), n);
            vf_store_any(second, args->dtype, vf_fma(a, s, vf_mul(b, c)), n);
        }
    }
}

static void rope_part(void *arg, int64_t part, int worker)
{
    const rope_work *work = arg;
    const tpi_rope_args *args = work->args;
    int64_t half = args->dim / 2, begin = part * work->part_places;
    int64_t end = begin + work->part_places < work->places ? begin + work->part_places : work->places;
    /* Worker 0's memory begins with the frequencies. */
    float *cosine = (float *)((double *)tpi_cpu_workspace(work->ctx, worker) + half), *sine = cosine + half;

    for (int64_t place = begin; place < end; place++) {
        if (work->by_place) {
            rope_angles(work, place, cosine, sine);
            for (int64_t row = place; row < args->rows; row += work->places)
                rope_row(args, row, cosine, sine);
        } else {
            rope_angles(work, args->positions ? args->positions[place] : tpi_sequence_place(&work->sequences, place),
                        cosine, sine);
            rope_row(args, place, cosine, sine);
        }
    }
}

tp_status CPU(rope)(tp_ctx *ctx, const void *args)
{
    rope_work work = {.args = args, .ctx = ctx};
    const tpi_rope_args *rope = args;
    int64_t half = rope->dim / 2, row_elements = rope->heads * rope->head_dim;
    double *frequency;

    if (rope->rows <= 0 || half <= 0 || rope->heads <= 0)
        return TP_OK;
    TPI_TRY(tpi_cpu_reserve(ctx, (size_t)half * (sizeof(double) + 2 * sizeof(float))));
    frequency = tpi_cpu_workspace(ctx, 0);
    for (int64_t i = 0; i < half; i++)
        frequency[i] = pow(rope->theta, -2.0 * (double)i / (double)rope->dim);
    work.frequency = frequency;
    work.sequences = tpi_sequences_of(rope->offsets, rope->sequences, rope->rows);
    work.by_place = !rope->positions && !rope->offsets;
    work.places = work.by_place ? work.sequences.length : rope->rows;
    if (work.by_place)
        row_elements *= work.sequences.count;
    work.part_places = PART_ELEMENTS / row_elements > 1 ? PART_ELEMENTS / row_elements : 1;
    tpi_cpu_parallel(ctx, (work.places + work.part_places - 1) / work.part_places, rope_part, &work);
    return TP_OK;
}
