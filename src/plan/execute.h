/* The executor: runs plans on the context's lanes. A plan is prepared once (lanes, events, flags that ranks show each
 * other) and then run any number of times, for any number of rows, without allocating. */
#ifndef TPI_EXECUTE_H
#define TPI_EXECUTE_H

#include <tp/overlap.h>

#include "comm/table.h"
#include "core/context.h"

typedef struct tpi_prepared tpi_prepared;
typedef struct tpi_run tpi_run;

/* Issues one op on its lane's stream. What it reads and writes, and where that is, the run says. */
typedef tp_status (*tpi_plan_issue)(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op);

/* What to call for each kind. Kinds without an entry: PULL, PUSH, COPY, SEND, RECV, REDUCE and COLLECTIVE are done on
 * the views, others are nothing. */
typedef struct tpi_plan_table {
    tpi_plan_issue issue[TP_OP_KINDS];
} tpi_plan_table;

/* One buffer of this rank: rows of `cols` elements, `stride` apart, the first being global row `first`. INBOX: this
 * rank's rows once for every other rank, in rank order. data NULL: not there. */
typedef struct tpi_view {
    void *data;
    tp_dtype dtype;
    int64_t cols, stride;
    int64_t first;
} tpi_view;

/* What one run works on. Views stay until the compute stream has passed the plan. */
typedef struct tpi_job {
    const tpi_plan_table *table;
    void *user;
    int64_t tokens; /* global rows, of all pieces together; the same on all ranks */
    tpi_view view[TP_BUFFERS];
    /* How REDUCE and reducing COLLECTIVEs finish OUTPUT. first_row: of global row 0; its residual is not used, but
     * this: */
    tp_reduce_desc reduce;
    tpi_view residual;
    /* Of this rank's rows of OUTPUT, when they are there: with the all-reduce that gives all of them, else behind the
     * plan. NULL: none. */
    const tpi_norm_args *norm;
} tpi_job;

/* Collective over `comm` where ops wait for other ranks' or a lane needs a communicator. The plan is borrowed; ranks 1:
 * it is run by each rank alone. Lives until the context is destroyed. */
tp_status tpi_plan_prepare(tp_ctx *ctx, tp_comm *comm, const tp_plan *plan, tpi_prepared **out);

/* The same for a generated plan, made and prepared at most once a context: layers share it. */
tp_status tpi_plan_get(tp_ctx *ctx, tp_comm *comm, const tp_plan_desc *desc, tpi_prepared **out);

const tp_plan *tpi_prepared_plan(const tpi_prepared *prepared);

/* Outside, a plan looks like one op of the compute stream: lanes start after what was issued on it before, and are
 * waited for by it at the end. All ranks run the same plans in the same order. A failure inside a plan with peers
 * breaks the context; its buffers may be freed when this has returned. */
tp_status tpi_plan_run(tpi_prepared *prepared, const tpi_job *job);

/* A view of a whole tensor whose row 0 is global row `first`; of none: none. */
tpi_view tpi_view_of(tp_tensor tensor, int64_t first);

/* For callbacks: an op works on segments, stretches of rows that lie together in every buffer. */
typedef struct tpi_segment {
    int piece;     /* the first */
    tp_range rows; /* global */
} tpi_segment;

const tpi_job *tpi_run_job(const tpi_run *run);
const tp_plan *tpi_run_plan(const tpi_run *run);
int tpi_run_segments(const tpi_run *run, const tp_plan_op *op);
tpi_segment tpi_run_segment(const tpi_run *run, const tp_plan_op *op, int index);
/* The segment's rows of a region, in whoever's memory: its data is the first of them. */
tpi_view tpi_run_at(const tpi_run *run, const tp_region *region, tpi_segment segment);
/* The columns of INPUT, and of what is gathered from it, that a slice of a sliced pattern has. */
tp_range tpi_run_columns(const tpi_run *run, int slice);
/* Global rows of pieces [piece, piece + pieces). */
tp_range tpi_run_rows(const tpi_run *run, int piece, int pieces);

#endif
