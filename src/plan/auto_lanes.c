/* What lanes without a core of their own take from compute: each of their ops interrupts what its rank computes when
 * the op ends, and starting them what it computes first. Where compute waits for the link, or for the very op, ops take
 * nothing; a start keeps the lane's first op waiting instead. */
#include <stdlib.h>

#include "core/context.h"
#include "plan/auto.h"
#include "plan/price.h"
#include "plan/simulation.h"

/* An op that no GEMM waits for, nor anything after it on its lane, runs when compute is through, if compute can't be
 * interrupted for so long: that is up to the kernel, and changes from run to run. A lane's last op takes its time in
 * either case: from compute, or behind it, where the plan's end waits for it. */
#define UNAWAITED 0.5

/* What is taken from compute makes it busy for longer, so that later ops find it at work too. */
#define ROUNDS 2

typedef struct lane_job {
    const tp_machine *machine;
    const tp_plan *plan;
    const tp_plan_costs *costs;
    const tp_timeline *timeline;
    int awaited[TP_PLAN_MAX_RANKS][TP_LANES]; /* past the last op of a lane that compute of some rank waits for */
    int first[TP_PLAN_MAX_RANKS][TP_LANES], last[TP_PLAN_MAX_RANKS][TP_LANES]; /* op of a lane; -1: it has none */
} lane_job;

/* What the plan says, whatever the times. */
static void look_at_plan(lane_job *job)
{
    for (int rank = 0; rank < job->plan->ranks; rank++)
        for (int lane = 0; lane < TP_LANES; lane++)
            job->first[rank][lane] = job->last[rank][lane] = -1;
    for (int rank = 0; rank < job->plan->ranks; rank++)
        for (int i = 0; i < job->plan->rank[rank].count; i++) {
            const tp_plan_op *op = &job->plan->rank[rank].op[i];
            int *first = &job->first[rank][op->lane];
            *first = *first < 0 ? i : *first;
            job->last[rank][op->lane] = i;
            for (int w = 0; w < op->waits && op->lane == TP_LANE_COMPUTE && op->kind != TP_OP_LEAVE; w++) {
                tp_wait on = op->wait[w];
                int *end = &job->awaited[on.rank][job->plan->rank[on.rank].op[on.op].lane];
                *end = on.op >= *end ? on.op + 1 : *end;
            }
        }
}

/* Of what it takes to switch to an op and back. */
static double share_of(const lane_job *job, int rank, int index)
{
    const tp_plan_op *op = &job->plan->rank[rank].op[index];
    bool counts = op->kind == TP_OP_SEND || index < job->awaited[rank][op->lane] || index == job->last[rank][op->lane];
    return counts ? 1 : UNAWAITED;
}

/* Moving and adding memory, and switching to the op and back. */
static double time_of(const lane_job *job, int rank, int index)
{
    const tp_plan_op *op = &job->plan->rank[rank].op[index];
    const tp_plan_costs *costs = job->costs;
    double share = share_of(job, rank, index);
    if (op->kind == TP_OP_COLLECTIVE) {
        tpi_collective_price price = tpi_price_collective(job->plan, costs, op);
        double meet = job->machine->meet_seconds > 0 ? job->machine->meet_seconds : job->machine->lane_seconds;
        return share * meet + tpi_price_seconds(price.copied, costs->copy_bytes_per_second) +
               tpi_price_seconds(price.added, costs->reduce_bytes_per_second);
    }
    double moving = 0;
    if (tpi_price_is_transfer(op->kind) && op->kind != TP_OP_SEND) {
        const tp_region *moved = op->kind == TP_OP_RECV ? &op->write[0] : &op->read[0];
        moving = tpi_price_seconds(tpi_price_bytes(job->plan, costs, moved), costs->copy_bytes_per_second);
    }
    return share * job->machine->lane_seconds + moving;
}

static bool waits_for(const tp_plan_op *op, int rank, int index)
{
    for (int w = 0; w < op->waits; w++)
        if (op->wait[w].rank == rank && op->wait[w].op == index)
            return true;
    return false;
}

/* What the rank computes at some time, from op `from` on; -1: nothing, or what began because of op `ended`. */
static int running_at(const lane_job *job, int rank, int from, double when, int ended)
{
    const tp_plan_rank *list = &job->plan->rank[rank];
    for (int i = from; i < list->count; i++) {
        const tp_span *span = &job->timeline->span[rank][i];
        if (list->op[i].lane != TP_LANE_COMPUTE || span->compute_end <= when)
            continue;
        return span->compute_begin < when || (span->compute_begin <= when && !waits_for(&list->op[i], rank, ended))
                   ? i
                   : -1;
    }
    return -1;
}

static void charge_rank(const lane_job *job, int rank, double *seconds)
{
    const tp_plan_rank *list = &job->plan->rank[rank];
    int at[TP_LANES] = {0}; /* where a lane's last op found compute: its ops end in order */
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++) {
        if (job->first[rank][lane] < 0)
            continue;
        int computed = running_at(job, rank, 0, 0, -1);
        seconds[computed >= 0 ? computed : job->first[rank][lane]] += job->machine->start_seconds;
    }
    for (int i = 0; i < list->count; i++) {
        int lane = (int)list->op[i].lane,
            found = lane == TP_LANE_COMPUTE ? -1 : running_at(job, rank, at[lane], job->timeline->span[rank][i].end, i);
        if (found < 0)
            continue;
        at[lane] = found;
        seconds[found] += time_of(job, rank, i);
    }
}

bool tpi_plan_uses_lanes(const tp_plan *plan)
{
    for (int i = 0; i < plan->rank[0].count; i++)
        if (plan->rank[0].op[i].lane != TP_LANE_COMPUTE)
            return true;
    return false;
}

/* Room for a figure an op. */
static tp_status allocate(const tp_plan *plan, tpi_lane_charges *out)
{
    size_t ops = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        ops += (size_t)plan->rank[rank].count;
    out->memory = calloc(ops, sizeof *out->memory);
    if (out->memory == NULL)
        return tpi_message(TP_ERR_MEMORY, "tp_overlap_predict: out of memory for %zu ops", ops);
    double *next = out->memory;
    for (int rank = 0; rank < plan->ranks; rank++) {
        out->seconds[rank] = next;
        next += plan->rank[rank].count;
    }
    return TP_OK;
}

/* From what compute does when nothing, or what was charged before, is taken from it. */
static tp_status charge(lane_job *job, int round, tpi_lane_charges *out)
{
    tp_timeline *timeline;
    TPI_TRY(tpi_plan_simulate(job->plan, job->costs, out->seconds, &timeline));
    if (round == 0) /* waits that lead nowhere were found by simulating */
        look_at_plan(job);
    job->timeline = timeline;
    out->total = 0;
    for (int rank = 0; rank < job->plan->ranks; rank++) {
        for (int i = 0; i < job->plan->rank[rank].count; i++)
            out->seconds[rank][i] = 0;
        charge_rank(job, rank, out->seconds[rank]);
    }
    for (int i = 0; i < job->plan->rank[0].count; i++)
        out->total += job->plan->rank[0].op[i].lane == TP_LANE_COMPUTE ? out->seconds[0][i] : 0;
    tp_timeline_destroy(timeline);
    return TP_OK;
}

tp_status tpi_lanes_charge(const tp_machine *machine, const tp_plan *plan, const tp_plan_costs *costs,
                           tpi_lane_charges *out)
{
    *out = (tpi_lane_charges){.total = 0};
    if (!machine->lanes_share_cores || !tpi_plan_uses_lanes(plan))
        return TP_OK;
    lane_job *job = calloc(1, sizeof *job);
    tp_status status =
        job != NULL ? allocate(plan, out) : tpi_message(TP_ERR_MEMORY, "tp_overlap_predict: out of memory");
    if (status == TP_OK)
        *job = (lane_job){.machine = machine, .plan = plan, .costs = costs};
    for (int round = 0; round < ROUNDS && status == TP_OK; round++)
        status = charge(job, round, out);
    free(job);
    if (status != TP_OK) {
        free(out->memory);
        out->memory = NULL;
    }
    return status;
}
