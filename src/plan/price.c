#include "plan/price.h"

#include <math.h>

#include "core/context.h"

static bool good(double value)
{
    return value >= 0 && isfinite(value);
}

tp_status tpi_price_check_costs(const char *function, const tp_plan *plan, const tp_plan_costs *costs)
{
    if (plan == NULL || costs == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "%s: %s is NULL", function, plan == NULL ? "plan" : "costs");
    const struct {
        const char *name;
        double value;
    } fields[] = {
        {"gemm_seconds[0]", costs->gemm_seconds[0]},
        {"gemm_seconds[1]", costs->gemm_seconds[1]},
        {"gemm_seconds[2]", costs->gemm_seconds[2]},
        {"gemm_seconds[3]", costs->gemm_seconds[3]},
        {"compute_seconds", costs->compute_seconds},
        {"gemm_overhead[0]", costs->gemm_overhead[0]},
        {"gemm_overhead[1]", costs->gemm_overhead[1]},
        {"gemm_overhead[2]", costs->gemm_overhead[2]},
        {"gemm_overhead[3]", costs->gemm_overhead[3]},
        {"compute_overhead", costs->compute_overhead},
        {"reduce_bytes_per_second", costs->reduce_bytes_per_second},
        {"copy_bytes_per_second", costs->copy_bytes_per_second},
        {"transfer_overhead", costs->transfer_overhead},
        {"lane_seconds", costs->lane_seconds},
        {"wait_seconds", costs->wait_seconds},
        {"wake_seconds", costs->wake_seconds},
        {"arrival_seconds", costs->arrival_seconds},
        {"link.latency_seconds", costs->link.latency_seconds},
        {"link.bytes_per_second", costs->link.bytes_per_second},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!good(fields[i].value))
            return tpi_message(TP_ERR_ARGUMENT, "%s: costs.%s is %g, must be 0 or more", function, fields[i].name,
                               fields[i].value);
    for (int i = 0; i < TP_BUFFERS; i++)
        if (!good(costs->bytes[i]))
            return tpi_message(TP_ERR_ARGUMENT, "%s: costs.bytes[%s] is %g, must be 0 or more", function,
                               tp_buffer_name((tp_buffer)i), costs->bytes[i]);
    return TP_OK;
}

static bool regions_good(const tp_plan *plan, const tp_region *region, int count)
{
    for (int i = 0; i < count; i++)
        if (region[i].rank < 0 || region[i].rank >= plan->ranks || (int)region[i].buffer < 0 ||
            region[i].buffer >= TP_BUFFERS)
            return false;
    return true;
}

static tp_status check_op(const tp_plan *plan, int rank, int index)
{
    const tp_plan_op *op = &plan->rank[rank].op[index];
    const char *what = NULL;
    bool travels = tpi_price_is_transfer(op->kind) && op->kind != TP_OP_COLLECTIVE;
    if ((int)op->kind < 0 || op->kind >= TP_OP_KINDS)
        what = "no such kind of op";
    else if ((int)op->lane < 0 || op->lane >= TP_LANES)
        what = "no such lane";
    else if (travels && (op->peer < 0 || op->peer >= plan->ranks))
        what = "its peer is no rank of the plan";
    else if (op->part < 0 || op->part >= TP_PLAN_PARTS)
        what = "its part is not 0 to 3";
    else if (!regions_good(plan, op->read, op->reads) || !regions_good(plan, op->write, op->writes))
        what = "it reads or writes where there is no rank or buffer";
    else if ((op->kind == TP_OP_PULL || op->kind == TP_OP_PUSH || op->kind == TP_OP_SEND ||
              op->kind == TP_OP_COLLECTIVE) &&
             op->reads < 1)
        what = "it moves nothing";
    else if ((op->kind == TP_OP_GEMM || op->kind == TP_OP_RECV) && op->writes < 1)
        what = "it writes nothing";
    return what == NULL
               ? TP_OK
               : tpi_message(TP_ERR_STATE, "plan: rank %d op %d (%s): %s", rank, index, tp_op_name(op->kind), what);
}

tp_status tpi_price_check_plan(const tp_plan *plan)
{
    if (plan->ranks < 1 || plan->ranks > TP_PLAN_MAX_RANKS || plan->chunks < 1)
        return tpi_message(TP_ERR_STATE, "plan: %d ranks with %d chunks", plan->ranks, plan->chunks);
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int index = 0; index < plan->rank[rank].count; index++)
            TPI_TRY(check_op(plan, rank, index));
    return TP_OK;
}

static double share(const tp_plan *plan, int pieces)
{
    return (double)pieces / ((double)plan->ranks * plan->chunks);
}

double tpi_price_bytes(const tp_plan *plan, const tp_plan_costs *costs, const tp_region *region)
{
    bool whole = region->buffer == TP_BUFFER_GRADIENT || region->buffer == TP_BUFFER_FIRST_GRADIENT; /* one piece */
    return costs->bytes[region->buffer] * (whole ? region->pieces : share(plan, region->pieces));
}

bool tpi_price_is_transfer(tp_op_kind kind)
{
    return kind == TP_OP_PULL || kind == TP_OP_PUSH || kind == TP_OP_SEND || kind == TP_OP_RECV ||
           kind == TP_OP_COLLECTIVE;
}

double tpi_price_seconds(double bytes, double rate)
{
    return rate > 0 ? bytes / rate : 0;
}

/* Where a region's bytes are too many, or too many for a rate. No rank moves more than them all, once a rank. */
static tp_status check_region(const tp_plan *plan, const tp_plan_costs *costs, const tp_region *region)
{
    const struct {
        const char *name;
        double value;
    } rates[] = {
        {"link.bytes_per_second", costs->link.bytes_per_second},
        {"copy_bytes_per_second", costs->copy_bytes_per_second},
        {"reduce_bytes_per_second", costs->reduce_bytes_per_second},
    };
    const char *buffer = tp_buffer_name(region->buffer);
    double given = costs->bytes[region->buffer], bytes = tpi_price_bytes(plan, costs, region) * plan->ranks;
    if (!isfinite(bytes))
        return tpi_message(TP_ERR_ARGUMENT, "tp_plan_simulate: costs.bytes[%s] is %g, too many for %d ranks to move",
                           buffer, given, plan->ranks);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!isfinite(tpi_price_seconds(bytes, rates[i].value)))
            return tpi_message(TP_ERR_ARGUMENT,
                               "tp_plan_simulate: costs.bytes[%s] is %g and costs.%s is %g: that takes inf seconds",
                               buffer, given, rates[i].name, rates[i].value);
    return TP_OK;
}

tp_status tpi_price_find_endless(const tp_plan *plan, const tp_plan_costs *costs)
{
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int index = 0; index < plan->rank[rank].count; index++) {
            const tp_plan_op *op = &plan->rank[rank].op[index];
            for (int i = 0; i < op->reads; i++)
                TPI_TRY(check_region(plan, costs, &op->read[i]));
            for (int i = 0; i < op->writes; i++)
                TPI_TRY(check_region(plan, costs, &op->write[i]));
        }
    return TP_OK;
}

static double touched(const tp_plan *plan, const tp_plan_costs *costs, const tp_plan_op *op)
{
    double bytes = 0;
    for (int i = 0; i < op->reads; i++)
        bytes += tpi_price_bytes(plan, costs, &op->read[i]);
    for (int i = 0; i < op->writes; i++)
        bytes += tpi_price_bytes(plan, costs, &op->write[i]);
    return bytes;
}

double tpi_price_compute(const tp_plan *plan, const tp_plan_costs *costs, const tp_plan_op *op)
{
    /* Without peers a rank's own pieces are all there are. */
    double part = plan->pattern == TP_PATTERN_GEMM ? (double)op->pieces / plan->chunks : share(plan, op->pieces);
    switch (op->kind) {
    case TP_OP_GEMM: return costs->gemm_overhead[op->part] + costs->gemm_seconds[op->part] * part;
    case TP_OP_COMPUTE: return costs->compute_overhead + costs->compute_seconds * part;
    case TP_OP_REDUCE:
        return costs->compute_overhead + tpi_price_seconds(touched(plan, costs, op), costs->reduce_bytes_per_second);
    case TP_OP_COPY:
        return costs->compute_overhead + tpi_price_seconds(touched(plan, costs, op) / 2, costs->copy_bytes_per_second);
    default: return 0;
    }
}

double tpi_price_uncut(const tp_plan *plan, const tp_plan_costs *costs, int rank)
{
    bool called[2][TP_PLAN_PARTS] = {{false}};
    double seconds = 0;
    for (int i = 0; i < plan->rank[rank].count; i++) {
        const tp_plan_op *op = &plan->rank[rank].op[i];
        bool gemm = op->kind == TP_OP_GEMM;
        if (!gemm && op->kind != TP_OP_COMPUTE)
            continue;
        seconds += tpi_price_compute(plan, costs, op);
        if (called[gemm][op->part])
            seconds -= gemm ? costs->gemm_overhead[op->part] : costs->compute_overhead;
        called[gemm][op->part] = true;
    }
    return seconds;
}

tpi_collective_price tpi_price_collective(const tp_plan *plan, const tp_plan_costs *costs, const tp_plan_op *op)
{
    double n = plan->ranks, in = tpi_price_bytes(plan, costs, &op->read[0]);
    if (plan->ranks == 1)
        return (tpi_collective_price){0};
    double out = op->writes > 0 ? tpi_price_bytes(plan, costs, &op->write[0]) : 0;
    if (op->collective == TP_COLLECTIVE_ALL_GATHER) {
        tp_region all = op->read[0];
        all.pieces = op->pieces;
        double received = tpi_price_bytes(plan, costs, &all) - in;
        return (tpi_collective_price){.sent = in * (n - 1), .received = received, .steps = 1, .copied = received + in};
    }
    if (op->collective == TP_COLLECTIVE_REDUCE_SCATTER) {
        double own = in / n;
        return (tpi_collective_price){.sent = in - own, .received = own * (n - 1), .steps = 1, .added = in + out};
    }
    double moved = (in + out) * (n - 1) / n; /* a slice of the sums is added here and handed to all */
    return (tpi_collective_price){.sent = moved, .received = moved, .steps = 2, .added = in + out};
}
