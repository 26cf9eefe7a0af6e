/* What overlap algorithms share. A pattern is a sequence of stages (gather, GEMMs, reduction); tpi_stages_run emits
 * them in order, and an algorithm is a table of how it does each: which units it works on, how pieces travel, and how
 * partial sums come together. */
#ifndef TPI_STAGES_H
#define TPI_STAGES_H

#include "plan/builder.h"

/* Which pieces a unit has first: those that are here (before a gather completes), or those that peers wait for (before
 * a reduction). Between a gather and a reduction own pieces are half before peers' and half after: the first chunks
 * come meanwhile, and the last go. */
typedef enum tpi_order { TPI_OWN_FIRST = 0, TPI_OWN_LAST, TPI_OWN_AROUND } tpi_order;

struct tpi_algorithm;

typedef struct tpi_stages {
    tpi_builder *builder;
    const struct tpi_algorithm *algorithm;
    tp_pattern pattern;
    int ranks, chunks;
    bool reduces;      /* the reduction ends at all ranks, not at owners */
    bool sliced;       /* chunks are slices of columns */
    tpi_order order;   /* of the GEMMs being emitted */
} tpi_stages;

typedef struct tpi_algorithm {
    /* Units of the GEMM loop: how many, and the k-th of a rank. */
    int (*units)(const tpi_stages *s);
    tp_region (*unit)(const tpi_stages *s, int rank, int k);
    /* Emits the transfers of INPUT or SECOND on all ranks. */
    void (*gather)(const tpi_stages *s, tp_buffer buffer);
    /* Where `rank` reads the pieces of `unit` after the gather. */
    tp_region (*source)(const tpi_stages *s, int rank, tp_buffer buffer, tp_region unit);
    /* Units of a weight gradient, in global order. */
    int (*weight_units)(const tpi_stages *s);
    tp_region (*weight_unit)(const tpi_stages *s, int rank, int k);
    /* Emits the transfers of the partial sums that unit k made, on all ranks. */
    void (*scatter)(const tpi_stages *s, int k);
    /* Emits what completes the reduction. */
    void (*finish)(const tpi_stages *s);
    /* Emits the GEMMs on slices of columns, after their gather. */
    void (*slices)(const tpi_stages *s);
    tp_lane lane; /* of whole collectives */
} tpi_algorithm;

/* Everything at once, collectives on one lane. */
#define TPI_WHOLE_ON(which)                                                                                            \
    {                                                                                                                  \
        .units = tpi_one_unit, .unit = tpi_whole_unit, .gather = tpi_whole_gather, .source = tpi_gathered_source,      \
        .weight_units = tpi_one_unit, .weight_unit = tpi_whole_unit, .scatter = tpi_whole_scatter,                     \
        .finish = tpi_no_finish, .slices = tpi_slices_at_once, .lane = which                                           \
    }

void tpi_stages_run(tpi_builder *builder, const tpi_algorithm *algorithm);

/* Whether the pattern has a weight gradient; two. */
bool tpi_has_gradient(tp_pattern pattern);
bool tpi_has_two_gradients(tp_pattern pattern);

/* Regions: pieces `unit` of a buffer in rank's memory; all pieces; an owner's; one piece. */
tp_region tpi_region(tp_buffer buffer, int rank, tp_region unit);
tp_region tpi_all(const tpi_stages *s);
tp_region tpi_owned(const tpi_stages *s, int owner);
tp_region tpi_chunk(const tpi_stages *s, int owner, int chunk);

/* Ways to do a stage that several algorithms use. */
int tpi_one_unit(const tpi_stages *s);
tp_region tpi_whole_unit(const tpi_stages *s, int rank, int k);
/* Own pieces as one unit (around: two), each peer's chunk as one, peers in ring order from the next rank (`step` 1) or
 * the one before (-1). */
int tpi_peer_units(const tpi_stages *s);
tp_region tpi_peer_unit(const tpi_stages *s, int rank, int k, int step);
tp_region tpi_global_unit(const tpi_stages *s, int rank, int k);
/* The units of a weight gradient whose operand arrives piece by piece: as above, or an owner at a time where it has
 * long been there. */
int tpi_weight_units(const tpi_stages *s);
/* Whether a weight gradient reads nothing of peers. */
bool tpi_operands_are_local(const tpi_stages *s);
tp_region tpi_weight_unit(const tpi_stages *s, int rank, int k);
/* Where the gather of INPUT or SECOND puts pieces. */
tp_buffer tpi_gathered_buffer(const tpi_stages *s, tp_buffer buffer);
/* After the gather, own pieces are in INPUT and peers' in GATHERED. */
tp_region tpi_mixed_source(const tpi_stages *s, int rank, tp_buffer buffer, tp_region unit);
tp_region tpi_gathered_source(const tpi_stages *s, int rank, tp_buffer buffer, tp_region unit);
void tpi_no_scatter(const tpi_stages *s, int k);
void tpi_no_finish(const tpi_stages *s);
void tpi_whole_gather(const tpi_stages *s, tp_buffer buffer);
void tpi_whole_scatter(const tpi_stages *s, int k);

/* Transfer k of a gather on every rank: `step` ranks further, chunk `chunk`. Step by step, or, where a slice of all
 * owners is waited for, slice by slice. */
typedef struct tpi_hop {
    int step, chunk;
} tpi_hop;
int tpi_hops(const tpi_stages *s);
tpi_hop tpi_hop_at(const tpi_stages *s, int k);

/* Slices of columns, whose GEMMs run as they come (`direction` 1: the next rank's first, -1: those of the one before),
 * all together, or where they are. */
void tpi_slices_as_they_come(const tpi_stages *s, int direction);
void tpi_slices_at_once(const tpi_stages *s);
void tpi_slices_in_place(const tpi_stages *s);
/* A collective of `unit` on all ranks: gather of `buffer`, or the pattern's reduction. */
void tpi_emit_gather(const tpi_stages *s, tp_lane lane, tp_buffer buffer, tp_region unit, int part);
void tpi_emit_reduction(const tpi_stages *s, tp_lane lane, tp_region unit);
/* One-sided copy of `unit` from `buffer` of `peer` into `to` of `rank`. */
void tpi_emit_pull(const tpi_stages *s, int rank, int peer, tp_region from, tp_region to);
/* SEND on the comm lane of `from.rank`, RECV on the copy lane of `to.rank`. */
void tpi_emit_message(const tpi_stages *s, tp_region from, tp_region to);
/* REDUCE of a chunk at its owner from the own partial sums and the INBOX. */
void tpi_emit_inbox_reduce(const tpi_stages *s, int owner, int chunk);

#endif
