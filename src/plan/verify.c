#include "plan/verify.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "plan/price.h"

bool tpi_verify_fault(tpi_verifier *v, tp_fault fault, int op, const char *format, ...)
{
    tp_proof *proof = v->proof;
    proof->proven = false;
    proof->fault = fault;
    if (op >= 0) {
        proof->rank = v->rank[op];
        proof->op = op - v->first[v->rank[op]];
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(proof->message, sizeof proof->message, format, arguments);
    va_end(arguments);
    return false;
}

/* The plan's own numbers; after this, tables can be sized. */
static bool check_header(tpi_verifier *v)
{
    const tp_plan *plan = v->plan;
    if (plan->algorithm < 0 || plan->algorithm >= TP_OVERLAP_AUTO)
        return tpi_verify_fault(v, TP_FAULT_FIELD, -1, "plan: no such algorithm (%d)", plan->algorithm);
    if (plan->pattern < 0 || plan->pattern >= TP_PATTERN_COUNT)
        return tpi_verify_fault(v, TP_FAULT_FIELD, -1, "plan: no such pattern (%d)", plan->pattern);
    if (plan->ranks < 1 || plan->ranks > TP_PLAN_MAX_RANKS)
        return tpi_verify_fault(v, TP_FAULT_FIELD, -1, "plan: %d ranks, must be 1 to %d", plan->ranks,
                                TP_PLAN_MAX_RANKS);
    if (plan->chunks < 1 || plan->chunks > TP_PLAN_MAX_CHUNKS)
        return tpi_verify_fault(v, TP_FAULT_FIELD, -1, "plan: %d chunks, must be 1 to %d", plan->chunks,
                                TP_PLAN_MAX_CHUNKS);
    int64_t ops = 0;
    for (int rank = 0; rank < plan->ranks; rank++) {
        int count = plan->rank[rank].count;
        if (count < 0 || (count > 0 && plan->rank[rank].op == NULL) || ops + count > INT_MAX / 4)
            return tpi_verify_fault(v, TP_FAULT_FIELD, -1, "plan: rank %d has %d ops", rank, count);
        v->first[rank] = (int)ops;
        ops += count;
    }
    v->first[plan->ranks] = v->ops = (int)ops;
    v->pieces = plan->ranks * plan->chunks;
    v->lanes = plan->ranks * TP_LANES;
    return true;
}

/* Tables with one entry an op. */
static tp_status allocate_ops(tpi_verifier *v)
{
    size_t ops = (size_t)v->ops;
    v->op = malloc(ops * (sizeof *v->op + 8 * sizeof *v->rank) + 1);
    if (v->op == NULL)
        return tpi_message(TP_ERR_MEMORY, "plan verify: out of memory for %d ops", v->ops);
    v->rank = (int *)(v->op + ops);
    v->lane = v->rank + ops;
    v->place = v->lane + ops;
    v->before = v->place + ops;
    v->meets = v->before + ops;
    v->node = v->meets + ops;
    v->head = v->node + ops;
    v->order = v->head + ops;
    for (int rank = 0; rank < v->plan->ranks; rank++)
        for (int op = v->first[rank]; op < v->first[rank + 1]; op++) {
            v->op[op] = &v->plan->rank[rank].op[op - v->first[rank]];
            v->rank[op] = rank;
        }
    return TP_OK;
}

static size_t count_reads(const tpi_verifier *v)
{
    size_t reads = 0;
    for (int op = 0; op < v->ops; op++) {
        const tp_plan_op *o = tpi_verify_op(v, op);
        for (int i = 0; i < o->reads; i++)
            reads += (size_t)o->read[i].pieces;
    }
    return reads;
}

/* Tables with one entry a node, a piece of memory, a read. */
static tp_status allocate_tables(tpi_verifier *v)
{
    size_t ranks = (size_t)v->plan->ranks, pieces = (size_t)v->pieces, reads = count_reads(v);
    size_t gradients = ranks * (1 + (size_t)v->plan->chunks);
    if (reads > INT_MAX)
        return tpi_message(TP_ERR_ARGUMENT, "plan verify: %zu reads, at most %d", reads, INT_MAX);
    v->cells = pieces * (TP_BUFFERS - 1 + ranks);
    v->clock = calloc((size_t)v->nodes * (size_t)v->lanes + gradients + v->cells, sizeof *v->clock);
    v->cell = calloc(v->cells * ranks, sizeof *v->cell);
    v->reader = calloc(reads + 1, sizeof *v->reader);
    v->promises.memory =
        calloc(tpi_promises_room(v->plan->ranks, v->plan->chunks) + pieces + gradients, sizeof *v->promises.memory);
    if (v->clock == NULL || v->cell == NULL || v->reader == NULL || v->promises.memory == NULL)
        return tpi_message(TP_ERR_MEMORY, "plan verify: out of memory for %d ops", v->ops);
    v->accumulated = v->clock + (size_t)v->nodes * (size_t)v->lanes;
    v->used = v->accumulated + gradients;
    v->value = v->promises.memory + tpi_promises_room(v->plan->ranks, v->plan->chunks);
    v->gradient = v->value + pieces;
    for (size_t i = 0; i < v->cells * ranks; i++)
        v->cell[i].writer = v->cell[i].first = v->cell[i].reader = -1;
    v->promises.pattern = (tp_pattern)v->plan->pattern;
    v->promises.ranks = v->plan->ranks;
    v->promises.chunks = v->plan->chunks;
    tpi_promises_fill(&v->promises);
    for (int rank = 0; rank < v->plan->ranks; rank++) {
        for (int piece = 0; piece < v->plan->chunks; piece++)
            v->gradient[tpi_verify_gradient(v, rank, false, piece)] = tpi_gradient_begin(rank, false, piece);
        v->gradient[tpi_verify_gradient(v, rank, true, 0)] = tpi_gradient_begin(rank, true, 0);
    }
    return TP_OK;
}

static tp_status prove(tpi_verifier *v)
{
    if (!check_header(v))
        return TP_OK;
    TPI_TRY(allocate_ops(v));
    v->proof->ops = v->ops;
    if (!tpi_verify_fields(v) || !tpi_verify_meetings(v))
        return TP_OK;
    TPI_TRY(allocate_tables(v));
    TPI_TRY(tpi_verify_order(v));
    if (v->proof->fault != TP_FAULT_NONE || !tpi_verify_contents(v))
        return TP_OK;
    tpi_verify_peak(v);
    v->proof->proven = true;
    return TP_OK;
}

static tp_status verify(tpi_verifier *v)
{
    *v->proof = (tp_proof){.rank = -1, .op = -1};
    tp_status status = prove(v);
    free(v->op);
    free(v->clock);
    free(v->cell);
    free(v->reader);
    free(v->promises.memory);
    return status;
}

tp_status tp_plan_verify(const tp_plan *plan, tp_proof *proof)
{
    if (plan == NULL || proof == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_plan_verify: %s is NULL", plan == NULL ? "plan" : "proof");
    return verify(&(tpi_verifier){.plan = plan, .proof = proof});
}

tp_status tp_plan_count_peak(const tp_plan *plan, const tp_plan_costs *costs, double *bytes)
{
    if (bytes == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_plan_count_peak: bytes is NULL");
    *bytes = 0;
    TPI_TRY(tpi_price_check_costs("tp_plan_count_peak", plan, costs));
    tp_proof proof;
    tpi_verifier v = {.plan = plan, .proof = &proof, .costs = costs};
    TPI_TRY(verify(&v));
    if (!proof.proven)
        return tpi_message(TP_ERR_STATE, "tp_plan_count_peak: the plan is not proven: rank %d op %d: %s", proof.rank,
                           proof.op, proof.message);
    *bytes = v.peak_bytes;
    return TP_OK;
}
