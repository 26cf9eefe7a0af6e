/* What a pattern promises: for each piece of each buffer, what it must hold. Contents are symbols, 64-bit hashes of how
 * they came about: two are equal only if the same ops were done to the same data in the same order. Written from the
 * definitions in tp/overlap.h; generators know nothing of it. */
#ifndef TPI_PATTERNS_H
#define TPI_PATTERNS_H

#include <tp/overlap.h>

typedef struct tpi_promises {
    tp_pattern pattern;
    int ranks, chunks;
    uint64_t *memory; /* from the caller: tpi_promises_room of them */
    uint64_t *sum;    /* of each piece */
    uint64_t *core;   /* of each rank: everything its attention core reads */
} tpi_promises;

size_t tpi_promises_room(int ranks, int chunks);
void tpi_promises_fill(tpi_promises *promises);

/* What piece `piece` of a buffer in `rank`'s memory must hold; 0 if the pattern has no such piece. GRADIENT: see below.
 */
uint64_t tpi_promise(const tpi_promises *promises, tp_buffer buffer, int rank, int slot, int piece);

/* The pieces of a weight gradient, GRADIENT or FIRST_GRADIENT, must be accumulated in global order: which part adds to
 * what it held (-1: the pattern has no such gradient), and what it holds before the first. */
int tpi_gradient_part(tp_pattern pattern, bool first);
uint64_t tpi_gradient_begin(int rank, bool first, int piece);
/* Pieces that GRADIENT has: each is such a chain. */
int tpi_gradient_pieces(tp_pattern pattern, int chunks);
/* Whether chunks are slices of columns: OUTPUT is summed over an owner's slices, GRADIENT has a piece a slice. */
bool tpi_pattern_is_sliced(tp_pattern pattern);
/* What is added for piece `piece`: both operands; FIRST_GRADIENT: dy, the other is nobody else's. */
uint64_t tpi_gradient_operands(const tpi_promises *promises, bool first, int rank, int piece);

/* Whether COMPUTE mixes all its pieces (attention core) or works on each alone. */
bool tpi_core_mixes(tp_pattern pattern);

/* What ops make of symbols. Weights differ from rank to rank, so a product is the rank's own. */
uint64_t tpi_symbol_mix(uint64_t so_far, uint64_t next);
uint64_t tpi_symbol_gemm(int rank, int part, uint64_t operand);
uint64_t tpi_symbol_compute(int rank, int part, uint64_t operand);
uint64_t tpi_symbol_core(int rank, int part, uint64_t all, int piece);
uint64_t tpi_symbol_accumulate(int rank, int part, uint64_t before, uint64_t operands);

#endif
