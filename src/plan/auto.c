/* The choice for one number of rows: every candidate's plan is made and simulated. */
#include <tp/auto.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/context.h"
#include "plan/auto.h"
#include "plan/price.h"

/* Predictions are off by about so much, compared with that of `none`: it stays unless something is faster by more, */
#define NOISE 0.03
/* and all are compared as if their lanes took so much more from compute: how long a switch between threads takes is the least certain of the costs. */
#define LANE_DOUBT 0.5
/* What comes later in the list has more chunks, ops and waits: it must be worth it. */
#define CHUNK_GAIN 0.03

static const int chunk_counts[] = {1, 2, 4, 8, 16};

static bool is_backward(tp_pattern pattern)
{
    return pattern == TP_PATTERN_BACKWARD || pattern == TP_PATTERN_BACKWARD_REDUCE || pattern == TP_PATTERN_ROW_BACKWARD || tpi_overlap_is_chain_backward(pattern);
}

int tpi_overlap_list_candidates(const tp_overlap_shape *shape, tp_plan_desc desc[TP_OVERLAP_CANDIDATES])
{
    static const tp_overlap cut[] = {TP_OVERLAP_DIRECT, TP_OVERLAP_PULL, TP_OVERLAP_RING, TP_OVERLAP_PIPELINE};
    int count = 0;
    tp_plan_desc one = {.pattern = shape->pattern, .ranks = shape->ranks, .chunks = 1};
    desc[count++] = one;
    if (shape->ranks == 1 || shape->pattern == TP_PATTERN_GEMM)
        return count;
    one.algorithm = TP_OVERLAP_BULK;
    if (is_backward(shape->pattern))
        desc[count++] = one;
    for (size_t a = shape->apart ? 3 : 0; a < sizeof cut / sizeof *cut; a++) /* the last one is made of collectives */
        for (size_t c = 0; c < sizeof chunk_counts / sizeof *chunk_counts; c++) {
            one.algorithm = cut[a];
            one.chunks = chunk_counts[c];
            desc[count++] = one;
        }
    return count;
}

bool tpi_overlap_too_fine(const tp_overlap_shape *shape, const tp_plan_desc *desc)
{
    return desc->algorithm != TP_OVERLAP_NONE && desc->chunks > 1 && shape->rows < (int64_t)shape->ranks * desc->chunks;
}

/* What the lanes of one rank do. */
typedef struct lane_use {
    double moving; /* seconds on moving and adding memory */
    double ops, meets; /* for which compute is interrupted, on average; meets: collectives */
    int lanes;
} lane_use;

/* An op that no GEMM waits for, nor anything after it on its lane, runs when compute is through, if compute can't be interrupted for so long: that is up to
 * the kernel, and changes from run to run. */
#define UNAWAITED 0.5

/* Past the last op of a lane that compute of some rank waits for. */
static int end_of_awaited(const tp_plan *plan, int lane)
{
    const tp_plan_rank *list = &plan->rank[0];
    int end = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            const tp_plan_op *op = &plan->rank[rank].op[i];
            for (int w = 0; w < op->waits && op->lane == TP_LANE_COMPUTE && op->kind != TP_OP_LEAVE; w++)
                if (op->wait[w].rank == 0 && op->wait[w].op >= end && op->wait[w].op < list->count && (int)list->op[op->wait[w].op].lane == lane)
                    end = op->wait[w].op + 1;
        }
    return end;
}

static lane_use use_of_lanes(const tp_plan *plan, const tp_plan_costs *costs)
{
    const tp_plan_rank *list = &plan->rank[0];
    bool used[TP_LANES] = {false};
    int awaited[TP_LANES];
    lane_use use = {0};
    for (int lane = 0; lane < TP_LANES; lane++)
        awaited[lane] = end_of_awaited(plan, lane);
    for (int i = 0; i < list->count; i++) {
        const tp_plan_op *op = &list->op[i];
        if (op->lane == TP_LANE_COMPUTE)
            continue;
        *(op->kind == TP_OP_COLLECTIVE ? &use.meets : &use.ops) += op->kind == TP_OP_SEND || i < awaited[op->lane] ? 1 : UNAWAITED;
        used[op->lane] = true;
        if (op->kind == TP_OP_COLLECTIVE) {
            tpi_collective_price price = tpi_price_collective(plan, costs, op);
            use.moving += tpi_price_seconds(price.copied, costs->copy_bytes_per_second) + tpi_price_seconds(price.added, costs->reduce_bytes_per_second);
        } else if (tpi_price_is_transfer(op->kind) && op->kind != TP_OP_SEND) {
            const tp_region *moved = op->kind == TP_OP_RECV ? &op->write[0] : &op->read[0];
            use.moving += tpi_price_seconds(tpi_price_bytes(plan, costs, moved), costs->copy_bytes_per_second);
        }
    }
    for (int lane = 0; lane < TP_LANES; lane++)
        use.lanes += used[lane];
    return use;
}

/* What lanes without a core of their own would take from compute that is always busy: what they do, and switching to each of their ops and back. */
static double time_of_lanes(const tp_machine *machine, const tp_plan *plan, const tp_plan_costs *costs)
{
    lane_use use = use_of_lanes(plan, costs);
    double meet = machine->meet_seconds > 0 ? machine->meet_seconds : machine->lane_seconds;
    return machine->lanes_share_cores ? use.moving + use.ops * machine->lane_seconds + use.meets * meet + use.lanes * machine->start_seconds : 0;
}

/* The simulator does not know of cores: what is taken is spread over the GEMMs, so that it costs nothing where these wait for transfers anyway. */
static void charge(const tp_plan *plan, double taken, tp_plan_costs *costs)
{
    double computing = 0;
    for (int i = 0; i < plan->rank[0].count; i++) {
        const tp_plan_op *op = &plan->rank[0].op[i];
        if (op->kind == TP_OP_GEMM || op->kind == TP_OP_COMPUTE)
            computing += tpi_price_compute(plan, costs, op) - (op->kind == TP_OP_COMPUTE ? costs->compute_overhead : 0); /* that is of reductions too */
    }
    double slower = computing > 0 ? 1 + taken / computing : 1;
    for (int part = 0; part < TP_PLAN_PARTS; part++) {
        costs->gemm_seconds[part] *= slower;
        costs->gemm_overhead[part] *= slower;
    }
    costs->compute_seconds *= slower;
}

/* Lanes find compute as busy as it is without them; where it waits, they take nothing from it. */
static tp_status charge_lanes(const tp_machine *machine, const tp_plan *plan, tp_plan_costs *costs, double *taken)
{
    double lanes = time_of_lanes(machine, plan, costs);
    tp_timeline *timeline;
    *taken = 0;
    if (lanes <= 0)
        return TP_OK;
    TPI_TRY(tp_plan_simulate(plan, costs, &timeline));
    if (timeline->seconds > 0)
        *taken = lanes * timeline->compute_seconds / timeline->seconds;
    tp_timeline_destroy(timeline);
    charge(plan, *taken, costs);
    return TP_OK;
}

tp_status tp_overlap_predict(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan *plan, tp_overlap_candidate *out)
{
    tp_plan_costs costs;
    tp_timeline *timeline;
    double taken;
    if (out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_overlap_predict: out is NULL");
    TPI_TRY(tp_overlap_costs(machine, shape, plan, &costs));
    double gemm = tpi_price_uncut(plan, &costs, 0);
    TPI_TRY(charge_lanes(machine, plan, &costs, &taken));
    TPI_TRY(tp_plan_simulate(plan, &costs, &timeline));
    *out = (tp_overlap_candidate){.algorithm = (tp_overlap)plan->algorithm,
                                  .chunks = plan->chunks,
                                  .seconds = timeline->seconds,
                                  .gemm_seconds = gemm,
                                  .comm_seconds = timeline->comm_seconds,
                                  .exposed_seconds = timeline->exposed_seconds,
                                  .lane_seconds = taken};
    double shorter = fmin(gemm, out->comm_seconds);
    out->hidden = shorter > 0 ? (gemm + out->comm_seconds - out->seconds) / shorter : 0;
    tp_timeline_destroy(timeline);
    return TP_OK;
}

static double doubted(const tp_overlap_candidate *candidate)
{
    return candidate->seconds + LANE_DOUBT * candidate->lane_seconds;
}

static void add_candidate(tp_overlap_choice *choice, const tp_overlap_candidate *candidate)
{
    choice->candidate[choice->candidates++] = *candidate;
    bool first = choice->candidates == 1, faster = doubted(candidate) < choice->doubted * (1 - CHUNK_GAIN);
    if (first || (faster && doubted(candidate) < choice->candidate[0].seconds * (1 - NOISE))) {
        choice->algorithm = candidate->algorithm;
        choice->chunks = candidate->chunks;
        choice->seconds = candidate->seconds;
        choice->doubted = doubted(candidate);
    }
}

static void conclude(const tp_overlap_shape *shape, tp_overlap_choice *choice)
{
    double none = choice->candidate[0].seconds, gain = none > 0 ? 1 - choice->seconds / none : 0;
    if (choice->algorithm != TP_OVERLAP_NONE) {
        int tenths = (int)(gain * 1000);
        snprintf(choice->reason, sizeof choice->reason, "%s takes %d.%d %% less than none", tp_overlap_name(choice->algorithm), tenths / 10,
                 tenths % 10);
        return;
    }
    if (shape->ranks == 1)
        snprintf(choice->reason, sizeof choice->reason, "one rank: there is nothing to overlap");
    else if (choice->candidates == 1)
        snprintf(choice->reason, sizeof choice->reason, "no communication: there is nothing to overlap");
    else
        snprintf(choice->reason, sizeof choice->reason, "nothing is faster than none by more than %d %% and half of what its lanes take",
                 (int)(NOISE * 100 + 0.5));
}

tp_status tpi_overlap_try(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan_desc *desc, const tp_plan *plan,
                          tp_overlap_choice *choice)
{
    tp_overlap_candidate candidate;
    TPI_TRY(tp_overlap_predict(machine, shape, plan, &candidate));
    candidate.algorithm = desc->algorithm;
    candidate.chunks = desc->chunks;
    add_candidate(choice, &candidate);
    return TP_OK;
}

tp_status tpi_overlap_check_arguments(const char *function, const tp_machine *machine, const tp_overlap_shape *shape, const void *out)
{
    if (machine == NULL || shape == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "%s: %s is NULL", function, machine == NULL ? "machine" : shape == NULL ? "shape" : "out");
    return tpi_overlap_check_shape(shape);
}

tp_status tp_overlap_choose(const tp_machine *machine, const tp_overlap_shape *shape, tp_overlap_choice *out)
{
    TPI_TRY(tpi_overlap_check_arguments("tp_overlap_choose", machine, shape, out));
    tp_plan_desc desc[TP_OVERLAP_CANDIDATES];
    int candidates = tpi_overlap_list_candidates(shape, desc);
    tp_status status = TP_OK;
    *out = (tp_overlap_choice){.algorithm = TP_OVERLAP_NONE};
    for (int c = 0; c < candidates && status == TP_OK; c++) {
        tp_plan *plan = NULL;
        if (tpi_overlap_too_fine(shape, &desc[c]))
            continue;
        status = tp_plan_create(&desc[c], &plan);
        if (status == TP_OK)
            status = tpi_overlap_try(machine, shape, &desc[c], plan, out);
        tp_plan_destroy(plan);
    }
    if (status == TP_OK)
        conclude(shape, out);
    return status;
}
