/* Text of pictures: numbers are written without the locale. */
#ifndef TPI_RENDER_H
#define TPI_RENDER_H

#include <tp/simulate.h>

#include "plan/text.h"

/* A number with one digit after the point, or none where that is 0. */
void tpi_put_tenth(tpi_writer *page, double value);

#define TPI_LABEL 32

/* "1.25 ms": three digits. */
void tpi_label_seconds(char text[TPI_LABEL], double seconds);

/* The same without trailing zeros: "1 ms", "0". */
void tpi_label_round(char text[TPI_LABEL], double seconds);

/* The hidden share, "93.8 %"; "none" where it takes longer than one after the other; "-" of next to no communication:
 * under a microsecond, or a hundredth of the whole. */
void tpi_label_hidden(char text[TPI_LABEL], double hidden, double comm_seconds, double seconds);

/* Which pieces an op works on: "all", "r1" (the rows of rank 1), "r1.2" (chunk 2 of them), "c2" (chunk 2 of every
 * rank), "4-7". */
void tpi_label_pieces(char text[TPI_LABEL], const tp_plan *plan, const tp_plan_op *op);

/* The op of the peer that a SEND or RECV meets; -1: none. */
int tpi_message_partner(const tp_plan *plan, int rank, int index);

#endif
