/* What generators are made with. A generator emits ops as a sequential program over all ranks: executed in emission
 * order, one op after the other, it is right. Lanes and issue order are its choice; the waits that keep it right when
 * lanes and ranks run on their own are derived from reads and writes (read after write, write after read, write after
 * write) when the plan is finished, less those that lane order or other waits give already. */
#ifndef TPI_BUILDER_H
#define TPI_BUILDER_H

#include <tp/overlap.h>

typedef struct tpi_builder tpi_builder;

/* An op before it has waits: regions by value. */
typedef struct tpi_emit {
    tp_op_kind kind;
    tp_lane lane;
    int part, peer; /* peer: used by SEND, RECV, PULL, PUSH only */
    tp_region unit; /* piece, pieces and step of the op */
    tp_collective collective;
    int reads, writes;
    tp_region read[TP_PLAN_MAX_RANKS + 2];
    tp_region write[TP_PLAN_MAX_RANKS + 8];
} tpi_emit;

tp_status tpi_builder_create(const tp_plan_desc *desc, tpi_builder **out);
void tpi_builder_destroy(tpi_builder *builder);
const tp_plan_desc *tpi_builder_desc(const tpi_builder *builder);

/* Adds an op to a rank's list. A failure (memory) is kept and returned by tpi_builder_finish. */
void tpi_builder_add(tpi_builder *builder, int rank, const tpi_emit *emit);

/* Derives the waits and makes the plan. */
tp_status tpi_builder_finish(tpi_builder *builder, tp_plan **out);

#endif
