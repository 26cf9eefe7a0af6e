/* direct: no copies at all. The GEMM reads peers' inputs where they are, and the owner's reduction reads peers' partial
 * sums and, for an all-reduce, writes the result into every rank's output. */
#include "plan/overlap/algorithms.h"
#include "plan/overlap/stages.h"

static tp_region unit(const tpi_stages *s, int rank, int k)
{
    return tpi_peer_unit(s, rank, k, 1);
}

static void gather(const tpi_stages *s, tp_buffer buffer)
{
    (void)s;
    (void)buffer;
}

static tp_region source(const tpi_stages *s, int rank, tp_buffer buffer, tp_region pieces)
{
    (void)rank;
    return tpi_region(buffer, pieces.piece / s->chunks, pieces);
}

/* Nothing is waited for: an owner's memory is the only border. */
static int weight_units(const tpi_stages *s)
{
    return tpi_operands_are_local(s) ? 1 : s->ranks;
}

static tp_region weight_unit(const tpi_stages *s, int rank, int k)
{
    (void)rank;
    return tpi_operands_are_local(s) ? tpi_all(s) : tpi_owned(s, k);
}

static void finish(const tpi_stages *s)
{
    for (int chunk = 0; chunk < s->chunks; chunk++)
        for (int owner = 0; owner < s->ranks; owner++) {
            tp_region piece = tpi_chunk(s, owner, chunk);
            tpi_emit emit = {.kind = TP_OP_REDUCE, .lane = TP_LANE_COMPUTE, .unit = piece};
            for (int from = 0; from < s->ranks; from++)
                emit.read[emit.reads++] = tpi_region(TP_BUFFER_PARTIAL, from, piece);
            for (int to = 0; to < s->ranks; to++)
                if (s->reduces || to == owner)
                    emit.write[emit.writes++] = tpi_region(TP_BUFFER_OUTPUT, to, piece);
            tpi_builder_add(s->builder, owner, &emit);
        }
}

void tpi_generate_direct(tpi_builder *builder)
{
    static const tpi_algorithm direct = {.units = tpi_peer_units,
                                         .unit = unit,
                                         .gather = gather,
                                         .source = source,
                                         .weight_units = weight_units,
                                         .weight_unit = weight_unit,
                                         .scatter = tpi_no_scatter,
                                         .finish = finish,
                                         .slices = tpi_slices_in_place};
    tpi_stages_run(builder, &direct);
}
