/* The choice for one number of rows: every candidate's plan is made and simulated. */
#include <tp/auto.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/context.h"
#include "plan/auto.h"
#include "plan/simulation.h"

/* Predictions are off by about so much, compared with that of `none`: it stays unless something is faster by more. */
#define NOISE 0.03
/* Half of it lies in what lanes take, and in arrivals: the rest, for plans that move nothing. */
#define NOISE_IN_PLACE 0.015
/* What comes later in the list has more chunks, ops and waits: it must be worth it. */
#define CHUNK_GAIN 0.01

static const int chunk_counts[] = {1, 2, 4, 8, 16};

static bool is_backward(tp_pattern pattern)
{
    return pattern == TP_PATTERN_BACKWARD || pattern == TP_PATTERN_BACKWARD_REDUCE ||
           pattern == TP_PATTERN_ROW_BACKWARD || tpi_overlap_is_chain_backward(pattern);
}

int tpi_overlap_list_candidates(const tp_machine *machine, const tp_overlap_shape *shape,
                                tp_plan_desc desc[TP_OVERLAP_CANDIDATES])
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
            one.one_lane = cut[a] == TP_OVERLAP_PULL && machine->lanes_share_cores; /* as layers run it */
            one.chunks = chunk_counts[c];
            desc[count++] = one;
        }
    return count;
}

bool tpi_overlap_too_fine(const tp_overlap_shape *shape, const tp_plan_desc *desc)
{
    return desc->algorithm != TP_OVERLAP_NONE && desc->chunks > 1 && shape->rows < (int64_t)shape->ranks * desc->chunks;
}

tp_status tp_overlap_predict(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan *plan,
                             tp_overlap_candidate *out)
{
    tp_plan_costs costs;
    tp_timeline *timeline = NULL;
    tpi_lane_charges charges;
    if (out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_overlap_predict: out is NULL");
    TPI_TRY(tp_overlap_costs(machine, shape, plan, &costs));
    double gemm = tpi_price_uncut(plan, &costs, 0);
    TPI_TRY(tpi_lanes_charge(machine, plan, &costs, &charges));
    tp_status status = tpi_plan_simulate(plan, &costs, charges.memory != NULL ? charges.seconds : NULL, &timeline);
    free(charges.memory);
    TPI_TRY(status);
    *out = (tp_overlap_candidate){.algorithm = (tp_overlap)plan->algorithm,
                                  .chunks = plan->chunks,
                                  .seconds = timeline->seconds,
                                  .gemm_seconds = gemm,
                                  .comm_seconds = timeline->comm_seconds,
                                  .exposed_seconds = timeline->exposed_seconds,
                                  .lane_seconds = charges.total};
    double shorter = fmin(gemm, out->comm_seconds);
    out->hidden = shorter > 0 ? (gemm + out->comm_seconds - out->seconds) / shorter : 0;
    tp_timeline_destroy(timeline);
    return TP_OK;
}

static void add_candidate(tp_overlap_choice *choice, const tp_overlap_candidate *candidate, double noise)
{
    choice->candidate[choice->candidates++] = *candidate;
    bool first = choice->candidates == 1, faster = candidate->seconds < choice->seconds * (1 - CHUNK_GAIN);
    if (first || (faster && candidate->seconds < choice->candidate[0].seconds * (1 - noise))) {
        choice->algorithm = candidate->algorithm;
        choice->chunks = candidate->chunks;
        choice->seconds = candidate->seconds;
    }
}

static void conclude(const tp_overlap_shape *shape, tp_overlap_choice *choice)
{
    double none = choice->candidate[0].seconds, gain = none > 0 ? 1 - choice->seconds / none : 0;
    if (choice->algorithm != TP_OVERLAP_NONE) {
        int tenths = (int)(gain * 1000);
        snprintf(choice->reason, sizeof choice->reason, "%s takes %d.%d %% less than none",
                 tp_overlap_name(choice->algorithm), tenths / 10, tenths % 10);
        return;
    }
    if (shape->ranks == 1)
        snprintf(choice->reason, sizeof choice->reason, "one rank: there is nothing to overlap");
    else if (choice->candidates == 1)
        snprintf(choice->reason, sizeof choice->reason, "no communication: there is nothing to overlap");
    else
        snprintf(choice->reason, sizeof choice->reason, "nothing is faster than none by more than %d %%",
                 (int)(NOISE * 100 + 0.5));
}

tp_status tpi_overlap_try(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan_desc *desc,
                          const tp_plan *plan, tp_overlap_choice *choice)
{
    tp_overlap_candidate candidate;
    TPI_TRY(tp_overlap_predict(machine, shape, plan, &candidate));
    candidate.algorithm = desc->algorithm;
    candidate.chunks = desc->chunks;
    bool moves = tpi_plan_uses_lanes(plan) || desc->one_lane;
    add_candidate(choice, &candidate, moves ? NOISE : NOISE_IN_PLACE);
    return TP_OK;
}

tp_status tpi_overlap_check_arguments(const char *function, const tp_machine *machine, const tp_overlap_shape *shape,
                                      const void *out)
{
    if (machine == NULL || shape == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "%s: %s is NULL", function,
                           machine == NULL ? "machine"
                           : shape == NULL ? "shape"
                                           : "out");
    TPI_TRY(tpi_machine_check("machine", machine));
    return tpi_overlap_check_shape(shape);
}

tp_status tp_overlap_choose(const tp_machine *machine, const tp_overlap_shape *shape, tp_overlap_choice *out)
{
    TPI_TRY(tpi_overlap_check_arguments("tp_overlap_choose", machine, shape, out));
    tp_plan_desc desc[TP_OVERLAP_CANDIDATES];
    int candidates = tpi_overlap_list_candidates(machine, shape, desc);
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
