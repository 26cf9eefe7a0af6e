/* ring: point-to-point messages only. In a gather every rank passes on to the next what it got from the one before, so
 * each step's GEMM runs under the next step's transfer. Partial sums go straight to their owner: adding them on the way
 * would tie the order of the sum to the number of ranks. */
#include "plan/overlap/algorithms.h"
#include "plan/overlap/stages.h"

static tp_region unit(const tpi_stages *s, int rank, int k)
{
    return tpi_peer_unit(s, rank, k, s->order == TPI_OWN_LAST ? 1 : -1);
}

/* Own pieces start in `own`; what travels lands in `to`. */
static void pass_around(const tpi_stages *s, tp_buffer own, tp_buffer to)
{
    for (int k = 0; k < tpi_hops(s); k++)
        for (int rank = 0; rank < s->ranks; rank++) {
            tpi_hop hop = tpi_hop_at(s, k);
            int next = (rank + 1) % s->ranks;
            tp_region piece = tpi_chunk(s, (rank - hop.step + 1 + s->ranks) % s->ranks, hop.chunk);
            tpi_emit_message(s, tpi_region(hop.step == 1 ? own : to, rank, piece), tpi_region(to, next, piece));
        }
}

static void gather(const tpi_stages *s, tp_buffer buffer)
{
    pass_around(s, buffer, tpi_gathered_buffer(s, buffer));
}

static void scatter(const tpi_stages *s, int k)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        tp_region made = unit(s, rank, k);
        int owner = made.piece / s->chunks;
        if (owner == rank)
            continue;
        tp_region to = tpi_region(TP_BUFFER_INBOX, owner, made);
        to.slot = rank;
        tpi_emit_message(s, tpi_region(TP_BUFFER_PARTIAL, rank, made), to);
    }
}

static void finish(const tpi_stages *s)
{
    for (int chunk = 0; chunk < s->chunks; chunk++)
        for (int owner = 0; owner < s->ranks; owner++)
            tpi_emit_inbox_reduce(s, owner, chunk);
    if (s->reduces)
        pass_around(s, TP_BUFFER_OUTPUT, TP_BUFFER_OUTPUT);
}

static void slices(const tpi_stages *s)
{
    tpi_slices_as_they_come(s, -1);
}

void tpi_generate_ring(tpi_builder *builder)
{
    static const tpi_algorithm ring = {.units = tpi_peer_units,
                                       .unit = unit,
                                       .gather = gather,
                                       .source = tpi_mixed_source,
                                       .weight_units = tpi_weight_units,
                                       .weight_unit = tpi_weight_unit,
                                       .scatter = scatter,
                                       .finish = finish,
                                       .slices = slices};
    tpi_stages_run(builder, &ring);
}
