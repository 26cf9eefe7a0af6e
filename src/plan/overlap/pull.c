/* pull: a copy lane reads peers' chunks out of their memory, the next rank's first, while the compute lane works on
 * what is here. Nobody has to send: a flag says that a chunk is there. Partial sums are pulled by their owner, which
 * adds them at the end. */
#include "plan/overlap/algorithms.h"
#include "plan/overlap/stages.h"

static tp_region unit(const tpi_stages *s, int rank, int k)
{
    return tpi_peer_unit(s, rank, k, 1);
}

static void gather(const tpi_stages *s, tp_buffer buffer)
{
    for (int k = 0; k < tpi_hops(s); k++)
        for (int rank = 0; rank < s->ranks; rank++) {
            tpi_hop hop = tpi_hop_at(s, k);
            int peer = (rank + hop.step) % s->ranks; /* not all from the same one */
            tp_region piece = tpi_chunk(s, peer, hop.chunk);
            tpi_emit_pull(s, rank, peer, tpi_region(buffer, peer, piece),
                          tpi_region(tpi_gathered_buffer(s, buffer), rank, piece));
        }
}

/* Unit k of each rank was made for a peer, which pulls it. */
static void scatter(const tpi_stages *s, int k)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        tp_region made = unit(s, rank, k);
        int owner = made.piece / s->chunks;
        if (owner == rank)
            continue;
        tp_region to = tpi_region(TP_BUFFER_INBOX, owner, made);
        to.slot = rank;
        tpi_emit_pull(s, owner, rank, tpi_region(TP_BUFFER_PARTIAL, rank, made), to);
    }
}

static void finish(const tpi_stages *s)
{
    for (int chunk = 0; chunk < s->chunks; chunk++)
        for (int owner = 0; owner < s->ranks; owner++)
            tpi_emit_inbox_reduce(s, owner, chunk);
    for (int step = 1; s->reduces && step < s->ranks; step++)
        for (int chunk = 0; chunk < s->chunks; chunk++)
            for (int rank = 0; rank < s->ranks; rank++) {
                int peer = (rank + step) % s->ranks;
                tp_region piece = tpi_chunk(s, peer, chunk);
                tpi_emit_pull(s, rank, peer, tpi_region(TP_BUFFER_OUTPUT, peer, piece),
                              tpi_region(TP_BUFFER_OUTPUT, rank, piece));
            }
}

static void slices(const tpi_stages *s)
{
    tpi_slices_as_they_come(s, 1);
}

void tpi_generate_pull(tpi_builder *builder)
{
    static const tpi_algorithm pull = {.units = tpi_peer_units,
                                       .unit = unit,
                                       .gather = gather,
                                       .source = tpi_mixed_source,
                                       .weight_units = tpi_weight_units,
                                       .weight_unit = tpi_weight_unit,
                                       .scatter = scatter,
                                       .finish = finish,
                                       .slices = slices};
    tpi_stages_run(builder, &pull);
}
