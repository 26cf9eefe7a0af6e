/* The executor: issues a plan's ops on the context's lanes. It allocates nothing after a context's first plan. */
#ifndef TPI_EXECUTE_H
#define TPI_EXECUTE_H

#include <tp/overlap.h>

#include "core/context.h"

/* Issues one op on its lane's stream. */
typedef tp_status (*tpi_plan_issue)(void *user, tpi_stream *stream, const tp_plan_op *op);

/* What to call for each kind; kinds without an entry do nothing themselves (ENTER, LEAVE). */
typedef struct tpi_plan_table {
    tpi_plan_issue issue[TP_OP_KINDS];
} tpi_plan_table;

/* Other lanes start after what was issued on the compute stream before, and are waited for by it at the end: outside, a plan looks like one op of
 * the compute stream. */
tp_status tpi_plan_execute(tp_ctx *ctx, const tp_plan *plan, const tpi_plan_table *table, void *user);

#endif
