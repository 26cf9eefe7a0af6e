/* Ways to do a stage that several algorithms use. */
#include "plan/overlap/stages.h"

int tpi_one_unit(const tpi_stages *s)
{
    (void)s;
    return 1;
}

tp_region tpi_whole_unit(const tpi_stages *s, int rank, int k)
{
    (void)rank;
    (void)k;
    return tpi_all(s);
}

/* Own pieces before peers'. */
static int own_before(const tpi_stages *s)
{
    switch (s->order) {
    case TPI_OWN_LAST: return 0;
    case TPI_OWN_AROUND: return s->ranks == 1 || s->chunks == 1 ? s->chunks : s->chunks / 2;
    default: return s->chunks;
    }
}

int tpi_peer_units(const tpi_stages *s)
{
    int before = own_before(s), own = (before > 0) + (before < s->chunks);
    return own + (s->ranks - 1) * s->chunks;
}

tp_region tpi_peer_unit(const tpi_stages *s, int rank, int k, int step)
{
    int before = own_before(s), other = before > 0 ? k - 1 : k;
    if (other < 0)
        return (tp_region){.piece = rank * s->chunks, .pieces = before, .step = 1};
    if (other == (s->ranks - 1) * s->chunks)
        return (tp_region){.piece = rank * s->chunks + before, .pieces = s->chunks - before, .step = 1};
    int distance = other / s->chunks + 1;
    int owner = (rank + (step > 0 ? distance : s->ranks - distance)) % s->ranks;
    return tpi_chunk(s, owner, other % s->chunks);
}

/* Owners in order, the own one as one unit. */
tp_region tpi_global_unit(const tpi_stages *s, int rank, int k)
{
    int before = rank * s->chunks; /* units before the own one */
    if (k == before)
        return tpi_owned(s, rank);
    int piece = k < before ? k : k - 1 + s->chunks;
    return tpi_chunk(s, piece / s->chunks, piece % s->chunks);
}

bool tpi_operands_are_local(const tpi_stages *s)
{
    return tpi_has_gradient(s->pattern) && s->reduces;
}

/* Beside an input gradient the operand had all that GEMM's time to come: cutting the weight gradient would only make it
 * load and store its sums more often. */
static bool operand_is_early(const tpi_stages *s)
{
    return s->pattern != TP_PATTERN_GATHER_WEIGHT;
}

int tpi_weight_units(const tpi_stages *s)
{
    if (tpi_operands_are_local(s))
        return 1;
    return operand_is_early(s) ? s->ranks : tpi_peer_units(s);
}

tp_region tpi_weight_unit(const tpi_stages *s, int rank, int k)
{
    if (tpi_operands_are_local(s))
        return tpi_all(s);
    return operand_is_early(s) ? tpi_owned(s, k) : tpi_global_unit(s, rank, k);
}

tp_buffer tpi_gathered_buffer(const tpi_stages *s, tp_buffer buffer)
{
    return tpi_has_two_gradients(s->pattern) && buffer == TP_BUFFER_SECOND ? TP_BUFFER_GATHERED_SECOND
                                                                           : TP_BUFFER_GATHERED;
}

static int owner_of(const tpi_stages *s, tp_region unit)
{
    return unit.piece / s->chunks;
}

tp_region tpi_mixed_source(const tpi_stages *s, int rank, tp_buffer buffer, tp_region unit)
{
    return tpi_region(owner_of(s, unit) == rank ? buffer : tpi_gathered_buffer(s, buffer), rank, unit);
}

tp_region tpi_gathered_source(const tpi_stages *s, int rank, tp_buffer buffer, tp_region unit)
{
    return tpi_region(tpi_gathered_buffer(s, buffer), rank, unit);
}

void tpi_no_scatter(const tpi_stages *s, int k)
{
    (void)s;
    (void)k;
}

void tpi_no_finish(const tpi_stages *s)
{
    (void)s;
}

void tpi_whole_gather(const tpi_stages *s, tp_buffer buffer)
{
    tpi_emit_gather(s, s->algorithm->lane, buffer, tpi_all(s), 0);
}

void tpi_whole_scatter(const tpi_stages *s, int k)
{
    (void)k;
    tpi_emit_reduction(s, s->algorithm->lane, tpi_all(s));
}

int tpi_hops(const tpi_stages *s)
{
    return (s->ranks - 1) * s->chunks;
}

tpi_hop tpi_hop_at(const tpi_stages *s, int k)
{
    int steps = s->ranks - 1;
    if (s->sliced)
        return (tpi_hop){k % steps + 1, k / steps};
    return (tpi_hop){k / s->chunks + 1, k % s->chunks};
}

/* The pieces of a unit that an owner has: what it gives to a gather, or gets from a scatter. */
static tp_region owned_part(const tpi_stages *s, int owner, tp_region unit)
{
    tp_region part = unit;
    part.pieces = 0;
    for (int i = 0; i < unit.pieces; i++) {
        int piece = unit.piece + i * unit.step;
        if (piece / s->chunks != owner)
            continue;
        if (part.pieces == 0)
            part.piece = piece;
        part.pieces++;
    }
    return part;
}

void tpi_emit_gather(const tpi_stages *s, tp_lane lane, tp_buffer buffer, tp_region unit, int part)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        tpi_emit emit = {.kind = TP_OP_COLLECTIVE,
                         .lane = lane,
                         .part = part,
                         .unit = unit,
                         .collective = TP_COLLECTIVE_ALL_GATHER,
                         .reads = 1,
                         .read = {tpi_region(buffer, rank, owned_part(s, rank, unit))},
                         .writes = 1,
                         .write = {tpi_region(tpi_gathered_buffer(s, buffer), rank, unit)}};
        tpi_builder_add(s->builder, rank, &emit);
    }
}

void tpi_emit_reduction(const tpi_stages *s, tp_lane lane, tp_region unit)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        tpi_emit emit = {.kind = TP_OP_COLLECTIVE,
                         .lane = lane,
                         .part = 1,
                         .unit = unit,
                         .collective = s->reduces ? TP_COLLECTIVE_ALL_REDUCE : TP_COLLECTIVE_REDUCE_SCATTER,
                         .reads = 1,
                         .read = {tpi_region(TP_BUFFER_PARTIAL, rank, unit)},
                         .writes = 1,
                         .write = {tpi_region(TP_BUFFER_OUTPUT, rank, s->reduces ? unit : owned_part(s, rank, unit))}};
        tpi_builder_add(s->builder, rank, &emit);
    }
}

void tpi_emit_pull(const tpi_stages *s, int rank, int peer, tp_region from, tp_region to)
{
    tpi_emit emit = {.kind = TP_OP_PULL, .lane = TP_LANE_COPY, .peer = peer, .unit = to, .reads = 1, .read = {from},
                     .writes = 1, .write = {to}};
    tpi_builder_add(s->builder, rank, &emit);
}

void tpi_emit_message(const tpi_stages *s, tp_region from, tp_region to)
{
    tpi_emit send = {
        .kind = TP_OP_SEND, .lane = TP_LANE_COMM, .peer = to.rank, .unit = from, .reads = 1, .read = {from}};
    tpi_emit recv = {
        .kind = TP_OP_RECV, .lane = TP_LANE_COPY, .peer = from.rank, .unit = to, .writes = 1, .write = {to}};
    tpi_builder_add(s->builder, from.rank, &send);
    tpi_builder_add(s->builder, to.rank, &recv);
}

void tpi_emit_inbox_reduce(const tpi_stages *s, int owner, int chunk)
{
    tp_region unit = tpi_chunk(s, owner, chunk);
    tpi_emit emit = {.kind = TP_OP_REDUCE, .lane = TP_LANE_COMPUTE, .unit = unit, .writes = 1};
    for (int from = 0; from < s->ranks; from++) {
        tp_region read = tpi_region(from == owner ? TP_BUFFER_PARTIAL : TP_BUFFER_INBOX, owner, unit);
        read.slot = from == owner ? 0 : from;
        emit.read[emit.reads++] = read;
    }
    emit.write[0] = tpi_region(TP_BUFFER_OUTPUT, owner, unit);
    tpi_builder_add(s->builder, owner, &emit);
}
