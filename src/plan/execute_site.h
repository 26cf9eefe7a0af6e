/* A place in a layer where a plan runs: one prepared plan, or, under TP_OVERLAP_AUTO, one for each class of token
 * counts. */
#ifndef TPI_EXECUTE_SITE_H
#define TPI_EXECUTE_SITE_H

#include <tp/auto.h>

#include "plan/execute.h"

typedef struct tpi_auto tpi_auto;

typedef struct tpi_site {
    tpi_prepared *fixed;
    const tpi_auto *choice; /* NULL: fixed */
} tpi_site;

/* Collective as tpi_plan_prepare. `shape`, which AUTO goes by, is the same on all ranks; its pattern, ranks and rows
 * are filled in. */
tp_status tpi_site_make(tp_ctx *ctx, tp_comm *comm, const tp_plan_desc *desc, const tp_overlap_shape *shape,
                        tpi_site *out);

/* The plan for so many tokens; NULL where no plan was made. */
tpi_prepared *tpi_site_at(const tpi_site *site, int64_t tokens);

/* Whether any number of tokens would run this algorithm. */
bool tpi_site_may_run(const tpi_site *site, tp_overlap algorithm);

void tpi_autos_free(tp_ctx *ctx, tpi_auto *first);

#endif
