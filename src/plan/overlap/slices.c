/* The backward of a row-parallel layer, whose chunks are slices of the gathered gradient's columns. A slice is all that
 * its rows of the weight gradient need, so these are done as soon as it is here, in the order of tokens on every rank;
 * the input gradient is summed slice by slice. */
#include "plan/overlap/stages.h"

static tp_region stripe_of(const tpi_stages *s, int slice)
{
    return (tp_region){.piece = slice, .pieces = s->ranks, .step = s->chunks};
}

/* Part 0: whole owners, or one slice after those before it. */
static void emit_sum(const tpi_stages *s, int rank, tp_region from)
{
    tp_region to = tpi_region(TP_BUFFER_OUTPUT, rank, from);
    tpi_emit emit = {.kind = TP_OP_GEMM, .lane = TP_LANE_COMPUTE, .unit = to, .reads = 1, .read = {from}, .writes = 1,
                     .write = {to}};
    if (from.piece % s->chunks != 0) {
        tp_region before =
            tpi_region(TP_BUFFER_OUTPUT, rank, (tp_region){.piece = from.piece - 1, .pieces = 1, .step = 1});
        emit.read[emit.reads++] = before;
    }
    tpi_builder_add(s->builder, rank, &emit);
}

/* Part 1: slices from `first` on, of the owners that `from` has. */
static void emit_weight(const tpi_stages *s, int rank, tp_region from, int first, int slices)
{
    tp_region gradient = tpi_region(TP_BUFFER_GRADIENT, rank, (tp_region){.piece = first, .pieces = slices, .step = 1});
    tpi_emit emit = {.kind = TP_OP_GEMM, .lane = TP_LANE_COMPUTE, .part = 1, .unit = from, .reads = 2, .writes = 1,
                     .write = {gradient}};
    emit.read[0] = gradient;
    emit.read[1] = from;
    tpi_builder_add(s->builder, rank, &emit);
}

static void emit_own_sum(const tpi_stages *s, int rank)
{
    emit_sum(s, rank, tpi_region(TP_BUFFER_INPUT, rank, tpi_owned(s, rank)));
}

/* Own rows join the others, so that a slice of all rows is one matrix. */
static void copy_own(const tpi_stages *s, int rank)
{
    tp_region from = tpi_region(TP_BUFFER_INPUT, rank, tpi_owned(s, rank)),
              to = tpi_region(TP_BUFFER_GATHERED, rank, from);
    tpi_emit emit = {.kind = TP_OP_COPY, .lane = TP_LANE_COMPUTE, .unit = to, .reads = 1, .read = {from}, .writes = 1,
                     .write = {to}};
    tpi_builder_add(s->builder, rank, &emit);
}

void tpi_slices_as_they_come(const tpi_stages *s, int direction)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        copy_own(s, rank);
        emit_own_sum(s, rank);
    }
    for (int slice = 0; slice < s->chunks; slice++)
        for (int rank = 0; rank < s->ranks; rank++) {
            for (int step = 1; step < s->ranks; step++) {
                int owner = (rank + s->ranks + direction * step) % s->ranks;
                emit_sum(s, rank, tpi_region(TP_BUFFER_GATHERED, rank, tpi_chunk(s, owner, slice)));
            }
            emit_weight(s, rank, tpi_region(TP_BUFFER_GATHERED, rank, stripe_of(s, slice)), slice, 1);
        }
}

void tpi_slices_at_once(const tpi_stages *s)
{
    for (int rank = 0; rank < s->ranks; rank++)
        emit_own_sum(s, rank);
    for (int rank = 0; rank < s->ranks; rank++) {
        for (int step = 1; step < s->ranks; step++)
            emit_sum(s, rank, tpi_region(TP_BUFFER_GATHERED, rank, tpi_owned(s, (rank + step) % s->ranks)));
        emit_weight(s, rank, tpi_region(TP_BUFFER_GATHERED, rank, tpi_all(s)), 0, s->chunks);
    }
}

void tpi_slices_in_place(const tpi_stages *s)
{
    for (int rank = 0; rank < s->ranks; rank++)
        for (int step = 0; step < s->ranks; step++) {
            int owner = (rank + step) % s->ranks;
            emit_sum(s, rank, tpi_region(TP_BUFFER_INPUT, owner, tpi_owned(s, owner)));
        }
    for (int slice = 0; slice < s->chunks; slice++)
        for (int owner = 0; owner < s->ranks; owner++)
            for (int rank = 0; rank < s->ranks; rank++)
                emit_weight(s, rank, tpi_region(TP_BUFFER_INPUT, owner, tpi_chunk(s, owner, slice)), slice, 1);
}
