/* The text form of plans: what tp_plan_print and tp_plan_explain write with.
 *
 *   plan ring gather-gemm ranks 2 chunks 1
 *   0: E writes input[0], output[0x2]; S 0 ~1 @comm after 0 reads input[0]; ...
 *
 * An op is its letter and part, the pieces it works on, then what it has of: the collective, ~ and its peer, @ and its
 * lane (compute is not written), `after` and its waits, `reads` and `writes` and their regions. Pieces: 4 is one, 4x3
 * are 4 5 6, 4x3/2 are 4 6 8. A wait is an op of this rank, or rank.op. A region is [rank:]buffer[#slot][pieces], of
 * this rank's memory where no rank is written. */
#ifndef TPI_PLAN_TEXT_H
#define TPI_PLAN_TEXT_H

#include <tp/overlap.h>

typedef struct tpi_writer {
    char *text;
    size_t bytes, length; /* length: what all of it needs */
} tpi_writer;

void tpi_put(tpi_writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Ends the text with its 0 and returns the length. */
size_t tpi_put_end(tpi_writer *writer);
void tpi_put_op(tpi_writer *writer, int rank, const tp_plan_op *op);

char tpi_op_letter(tp_op_kind kind);
const char *tpi_collective_name(tp_collective collective);

#endif
