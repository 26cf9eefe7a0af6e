#include "plan/execute_site.h"

#include <math.h>
#include <stdio.h>

#include "plan/auto.h"
#include "plan/execute_state.h"
#include "plan/fold.h"

/* Rows of the largest class; more run as it does. */
#define MOST_ROWS ((int64_t)1 << 17)

/* The plans that one shape's table asks for. Layers of the same shape share it. */
static bool same_shape(const tp_overlap_shape *a, const tp_overlap_shape *b)
{
    bool same = a->pattern == b->pattern && a->dtype == b->dtype && a->ranks == b->ranks;
    for (int i = 0; i < 2; i++)
        same = same && a->cols[i] == b->cols[i] && a->inner[i] == b->inner[i];
    return same && a->compute_flops >= b->compute_flops && a->compute_flops <= b->compute_flops;
}

static void describe_machine(const tp_ctx *ctx, tp_machine *out)
{
    tp_machine_default_of(ctx->desc.device, out);
    if (ctx->desc.machine != NULL)
        *out = *ctx->desc.machine;
    if (ctx->desc.device == TP_DEVICE_CPU) /* so is who has a core, by which PULL runs with or without a lane */
        out->lanes_share_cores = tpi_ctx_lanes_share_cores(ctx);
    tp_link link = ctx->desc.world != NULL ? tpi_world_link(ctx->desc.world) : (tp_link){0, 0};
    if (link.bytes_per_second > 0) /* a modelled link is what it is, on whatever machine */
        out->link = link;
}

typedef struct offer {
    tp_status status;
    bool unfinished; /* the table is being made: another offer follows */
    char reason[200]; /* why there is no table */
    tp_overlap_table table;
} offer;

typedef struct agreement {
    tp_ctx *ctx;
    tp_comm *comm;
    offer *mine, *all;
    double due;     /* when peers must hear again */
    tp_status told; /* of telling them */
} agreement;

/* Seconds for which peers hear nothing: they may be bounded more tightly than this rank. */
static double silence(const tp_ctx *ctx)
{
    return fmin(0.05, (double)ctx->desc.timeout_ms / 1000 / 8);
}

/* Peers' waits are bounded, the making of a table is not: they hear that it goes on. */
static tp_status tell_peers(void *arg)
{
    agreement *a = arg;
    double now = tpi_seconds();
    if (now < a->due)
        return TP_OK;
    a->mine->unfinished = true;
    a->told = a->comm->table->exchange(a->ctx, a->comm, a->mine, a->all, sizeof *a->mine);
    a->mine->unfinished = false;
    a->due = tpi_seconds() + silence(a->ctx);
    return a->told;
}

static tp_status make_table(agreement *a, const tp_overlap_shape *shape)
{
    tp_machine machine;
    describe_machine(a->ctx, &machine);
    const tpi_progress progress = {tell_peers, a};
    a->due = tpi_seconds() + silence(a->ctx);
    a->mine->status = tpi_overlap_table_fill(&machine, shape, &progress, &a->mine->table);
    if (a->mine->status != TP_OK)
        snprintf(a->mine->reason, sizeof a->mine->reason, "%s", tp_last_message());
    return a->told;
}

static tp_status offer_all(agreement *a, const tp_overlap_shape *shape)
{
    bool makes = a->comm->rank == 0 || a->ctx->desc.dry_run; /* in a dry run there is no other rank */
    if (makes)
        TPI_TRY(make_table(a, shape));
    do
        TPI_TRY(a->comm->table->exchange(a->ctx, a->comm, a->mine, a->all, sizeof *a->mine));
    while (a->all[0].unfinished);
    return TP_OK;
}

/* The first rank makes the table, and all go by it, whatever machine each of them thinks it runs on. */
static tp_status agree(tp_ctx *ctx, tpi_auto *choice)
{
    tp_comm *comm = choice->comm;
    size_t bytes = (size_t)(comm->size + 1) * sizeof(offer);
    offer *all = tpi_host_allocate(ctx, bytes);
    if (all == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "plan executor: out of memory");
    agreement a = {.ctx = ctx, .comm = comm, .mine = all + comm->size, .all = all};
    tp_status status = offer_all(&a, &choice->shape);
    tp_status made = all[0].status == TP_ERR_MEMORY && comm->rank > 0 ? TP_ERR_PEER : all[0].status;
    if (status == TP_OK && made != TP_OK)
        status = tpi_refuse(ctx, made, "plan executor: rank 0 of %d could not choose an overlap algorithm: %s",
                            comm->size, all[0].reason);
    choice->table = all[0].table;
    tpi_host_release(ctx, all, bytes);
    return status;
}

static tp_status fill(tp_ctx *ctx, tpi_auto *choice)
{
    TPI_TRY(agree(ctx, choice));
    for (int i = 0; i < choice->table.classes; i++) {
        const tp_plan_desc desc = {.algorithm = choice->table.entry[i].algorithm,
                                   .pattern = choice->shape.pattern,
                                   .ranks = choice->shape.ranks,
                                   .chunks = choice->table.entry[i].chunks};
        TPI_TRY(tpi_plan_get(ctx, choice->comm, &desc, &choice->plan[i]));
    }
    return TP_OK;
}

static tp_status find_auto(tp_ctx *ctx, tp_comm *comm, const tp_overlap_shape *shape, const tpi_auto **out)
{
    struct tpi_executor *executor = NULL;
    TPI_TRY(tpi_executor_get(ctx, &executor));
    for (const tpi_auto *a = executor->autos; a != NULL; a = a->next)
        if (a->comm == comm && same_shape(&a->shape, shape)) {
            *out = a;
            return TP_OK;
        }
    tpi_auto *made = tpi_host_allocate(ctx, sizeof *made);
    if (made == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "plan executor: out of memory");
    made->comm = comm;
    made->shape = *shape;
    tp_status status = fill(ctx, made);
    if (status != TP_OK) {
        tpi_host_release(ctx, made, sizeof *made);
        return status;
    }
    made->next = executor->autos;
    executor->autos = made;
    *out = made;
    return TP_OK;
}

void tpi_autos_free(tp_ctx *ctx, tpi_auto *first)
{
    while (first != NULL) {
        tpi_auto *next = first->next;
        tpi_host_release(ctx, first, sizeof *first);
        first = next;
    }
}

tp_status tpi_site_make(tp_ctx *ctx, tp_comm *comm, const tp_plan_desc *desc, const tp_overlap_shape *shape,
                        tpi_site *out)
{
    *out = (tpi_site){NULL, NULL};
    if (desc->algorithm != TP_OVERLAP_AUTO)
        return tpi_plan_get(ctx, comm, desc, &out->fixed);
    tp_overlap_shape whole = *shape;
    whole.pattern = desc->pattern;
    whole.ranks = desc->ranks;
    whole.rows = MOST_ROWS;
    whole.apart = comm->apart;
    return find_auto(ctx, comm, &whole, &out->choice);
}

tpi_prepared *tpi_site_at(const tpi_site *site, int64_t tokens)
{
    const tpi_auto *choice = site->choice;
    if (choice == NULL)
        return site->fixed;
    int i = 0;
    while (i + 1 < choice->table.classes && tokens > choice->table.entry[i].rows)
        i++;
    return choice->plan[i];
}

bool tpi_site_may_run(const tpi_site *site, tp_overlap algorithm)
{
    if (site->choice == NULL)
        return site->fixed != NULL && tpi_prepared_plan(site->fixed)->algorithm == (int)algorithm;
    for (int i = 0; i < site->choice->table.classes; i++)
        if (site->choice->table.entry[i].algorithm == algorithm)
            return true;
    return false;
}
