/* From a machine's figures and a shape to the costs of a plan. */
#include <tp/auto.h>

#include <math.h>

#include "core/context.h"
#include "plan/auto.h"
#include "plan/price.h"

/* Points so close to each other are the sizes that tiles come in: what lies between takes as long as the larger. */
#define TILE_ROWS 2

/* rows / rate, in rows of a point: linear between points, proportional outside. */
static double time_of_whole(const tp_machine_curve *curve, double rows, bool tiles)
{
    int points = curve->points;
    const double *at = curve->rows, *flops = curve->flops;
    if (points == 0 || rows <= 0)
        return 0;
    if (rows <= at[0])
        return rows / flops[0];
    int right = 1;
    while (right < points && at[right] < rows)
        right++;
    if (right == points)
        return rows / flops[points - 1];
    double low = at[right - 1] / flops[right - 1], high = at[right] / flops[right];
    if (tiles && at[right] - at[right - 1] <= TILE_ROWS)
        return high;
    return low + (high - low) * (rows - at[right - 1]) / (at[right] - at[right - 1]);
}

/* Of an average number of rows: balanced pieces have one more or one less. */
static double row_time(const tp_machine_curve *curve, double rows, bool tiles)
{
    double less = floor(rows), share = rows - less;
    double time = (1 - share) * time_of_whole(curve, less, tiles);
    return share > 0 ? time + share * time_of_whole(curve, less + 1, tiles) : time;
}

static const tp_machine_curve *product_curve(const tp_machine *machine, tp_dtype dtype)
{
    return &machine->gemm[machine->gemm[dtype].points > 0 ? dtype : TP_DTYPE_F32];
}

/* By dtype; NULL: not measured. */
static const tp_machine_curve *measured(const tp_machine_curve *curves, tp_dtype dtype)
{
    const tp_machine_curve *curve = &curves[curves[dtype].points > 0 ? dtype : TP_DTYPE_F32];
    return curve->points > 0 ? curve : NULL;
}

bool tpi_overlap_is_chain_backward(tp_pattern pattern)
{
    return pattern >= TP_PATTERN_CHAIN_BACKWARD;
}

/* Parts 2 and 3 are the weight gradients of what parts 0 and 1 multiply by. */
static int weight_of(int part)
{
    return part % 2;
}

static double over(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

/* The GEMM that adds up a weight gradient; -1: none does. */
static int weight_part(tp_pattern pattern)
{
    if (tpi_overlap_is_chain_backward(pattern))
        return 3;
    if (pattern == TP_PATTERN_GATHER_WEIGHT)
        return 0;
    return pattern == TP_PATTERN_BACKWARD || pattern == TP_PATTERN_BACKWARD_REDUCE || pattern == TP_PATTERN_ROW_BACKWARD
               ? 1
               : -1;
}

static bool is_weight(tp_pattern pattern, int part)
{
    return part == weight_part(pattern) || part == 2;
}

static double gemm_seconds(const tp_machine *machine, const tp_overlap_shape *shape, int part, double rows)
{
    const tp_machine_curve *curve = is_weight(shape->pattern, part) ? measured(machine->weight, shape->dtype) : NULL;
    double elements = (double)shape->cols[weight_of(part)] * (double)shape->inner[weight_of(part)];
    /* A weight gradient's tiles are of its columns: rows are what it sums over. */
    return 2.0 * elements *
           (curve != NULL ? row_time(curve, rows, false) : row_time(product_curve(machine, shape->dtype), rows, true));
}

static double gradient_bytes(const tp_overlap_shape *shape, int part)
{
    return 4.0 * (double)shape->cols[weight_of(part)] * (double)shape->inner[weight_of(part)];
}

/* What the first call on a weight gradient takes at least: nobody had it in a cache. Later calls have. */
static double gradient_seconds(const tp_machine *machine, const tp_overlap_shape *shape, int part)
{
    return is_weight(shape->pattern, part) ? over(gradient_bytes(shape, part), machine->gradient_bytes_per_second) : 0;
}

/* One GEMM over all rows. */
static double whole_seconds(const tp_machine *machine, const tp_overlap_shape *shape, int part)
{
    return fmax(gemm_seconds(machine, shape, part, (double)shape->rows), gradient_seconds(machine, shape, part));
}

/* A layer finds neither its weights nor the rows it works on in a cache, others used that in between: once, however a
 * plan is cut. What is written is fetched first. */
static double fetch_seconds(const tp_machine *machine, const tp_overlap_shape *shape, int part)
{
    double cols = (double)shape->cols[weight_of(part)], inner = (double)shape->inner[weight_of(part)],
           rows = (double)shape->rows;
    double size = (double)tp_dtype_size(shape->dtype);
    double gradient = machine->gradient_bytes_per_second > 0 ? 0 : gradient_bytes(shape, part);
    double bytes = is_weight(shape->pattern, part) ? gradient + rows * (inner + cols) * size
                                                   : (cols * inner + rows * (inner + 2 * cols)) * size;
    return over(bytes, machine->memory_bytes_per_second);
}

/* Part 0 on slices of columns leaves rows whole, but the sums of peers' rows are read and written once more with each,
 * and rounded in the end. */
static double lost_by_slicing(const tp_machine *machine, const tp_overlap_shape *shape, int calls)
{
    double sums = (double)shape->rows / shape->ranks * (double)shape->cols[0], slices = fmax(calls - shape->ranks, 0);
    double rounding = slices > 0 && shape->dtype != TP_DTYPE_F32
                          ? (shape->ranks - 1) * sums * (4.0 + (double)tp_dtype_size(shape->dtype))
                          : 0;
    return over(8.0 * sums * slices + rounding, machine->reduce_bytes_per_second);
}

/* What the plan's GEMMs of one part take longer than one whole GEMM, on average of its calls. */
static double lost_by_cutting(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan *plan, int part)
{
    const tp_plan_rank *list = &plan->rank[0];
    bool sliced = shape->pattern == TP_PATTERN_ROW_BACKWARD;
    double pieces = (double)plan->chunks * (plan->pattern == TP_PATTERN_GEMM ? 1 : plan->ranks), cut = 0, passes = 0;
    int calls = 0;
    for (int i = 0; i < list->count; i++)
        if (list->op[i].kind == TP_OP_GEMM && list->op[i].part == part) {
            double call = gemm_seconds(machine, shape, part, (double)shape->rows * list->op[i].pieces / pieces);
            cut += calls > 0 ? call : fmax(call, gradient_seconds(machine, shape, part));
            passes += sliced ? (double)list->op[i].write[0].pieces / plan->chunks : 1;
            calls++;
        }
    if (calls == 0)
        return 0;
    double whole = whole_seconds(machine, shape, part), lost = sliced ? 0 : cut - whole;
    bool weight = is_weight(shape->pattern, part), known = measured(machine->weight, shape->dtype) != NULL;
    if (weight && sliced && known) { /* a pass over the gradient has its share of the rows */
        double pass = gemm_seconds(machine, shape, part, (double)shape->rows / passes);
        lost = fmax(pass, gradient_seconds(machine, shape, part)) + (passes - 1) * pass - whole;
    } else if (weight && !known) /* every call reads and writes the gradient of its slice */
        lost += (passes - 1) * over(2 * gradient_bytes(shape, part), machine->reduce_bytes_per_second);
    else if (sliced && !weight)
        lost += lost_by_slicing(machine, shape, calls);
    return fmax(lost / calls, 0);
}

static void gemm_costs(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan *plan,
                       tp_plan_costs *out)
{
    for (int part = 0; part < TP_PLAN_PARTS; part++) {
        out->gemm_seconds[part] = whole_seconds(machine, shape, part) + fetch_seconds(machine, shape, part);
        out->gemm_overhead[part] = machine->call_seconds + lost_by_cutting(machine, shape, plan, part);
    }
    if (plan->algorithm == TP_OVERLAP_DIRECT && shape->ranks > 1 && machine->direct_slowdown > 1) {
        double remote = (machine->direct_slowdown - 1) * (shape->ranks - 1) / shape->ranks;
        bool both = shape->pattern == TP_PATTERN_CHAIN_BACKWARD || shape->pattern == TP_PATTERN_CHAIN_CORE_BACKWARD;
        bool row = shape->pattern == TP_PATTERN_ROW_BACKWARD;
        bool weights =
            shape->pattern == TP_PATTERN_GATHER_WEIGHT || shape->pattern == TP_PATTERN_BACKWARD || row || both;
        bool inputs = shape->pattern == TP_PATTERN_GATHER_GEMM || shape->pattern == TP_PATTERN_CHAIN ||
                      shape->pattern == TP_PATTERN_CHAIN_CORE || row || both;
        if (weights)
            out->gemm_seconds[weight_part(shape->pattern)] *= 1 + remote;
        if (inputs)
            out->gemm_seconds[0] *= 1 + remote;
        if (both)
            out->gemm_seconds[2] *= 1 + remote;
    }
}

static void byte_costs(const tp_overlap_shape *shape, tp_plan_costs *out)
{
    double rows = (double)shape->rows, size = (double)tp_dtype_size(shape->dtype);
    int last = shape->pattern >= TP_PATTERN_CHAIN ? 1 : 0, weight = weight_part(shape->pattern);
    out->bytes[TP_BUFFER_INPUT] = out->bytes[TP_BUFFER_GATHERED] = rows * (double)shape->inner[0] * size;
    out->bytes[TP_BUFFER_PARTIAL] = out->bytes[TP_BUFFER_INBOX] = rows * (double)shape->cols[last] * 4;
    out->bytes[TP_BUFFER_OUTPUT] = rows * (double)shape->cols[last] * size;
    out->bytes[TP_BUFFER_MIDDLE] = rows * (double)shape->cols[0] * size;
    out->bytes[TP_BUFFER_CORE] = rows * (double)shape->inner[1] * size;
    if (weight >= 0) {
        int w = weight_of(weight);
        out->bytes[TP_BUFFER_SECOND] = out->bytes[TP_BUFFER_GATHERED_SECOND] = rows * (double)shape->cols[w] * size;
        if (!tpi_overlap_is_chain_backward(shape->pattern) && shape->pattern != TP_PATTERN_ROW_BACKWARD)
            out->bytes[TP_BUFFER_GATHERED] = out->bytes[TP_BUFFER_SECOND];
        out->bytes[TP_BUFFER_GRADIENT] = (double)shape->cols[w] * (double)shape->inner[w] * 4;
        out->bytes[TP_BUFFER_FIRST_GRADIENT] = (double)shape->cols[0] * (double)shape->inner[0] * 4;
    }
}

tp_status tpi_overlap_check_shape(const tp_overlap_shape *shape)
{
    if ((int)shape->pattern < 0 || shape->pattern >= TP_PATTERN_COUNT)
        return tpi_message(TP_ERR_ARGUMENT, "overlap: shape.pattern is %d, must be 0 to %d", (int)shape->pattern,
                           TP_PATTERN_COUNT - 1);
    if (shape->dtype != TP_DTYPE_F32 && shape->dtype != TP_DTYPE_BF16 && shape->dtype != TP_DTYPE_F16)
        return tpi_message(TP_ERR_ARGUMENT, "overlap: shape.dtype is %d, must be f32, bf16 or f16", (int)shape->dtype);
    if (shape->ranks < 1 || shape->ranks > TP_PLAN_MAX_RANKS)
        return tpi_message(TP_ERR_ARGUMENT, "overlap: shape.ranks is %d, must be 1 to %d", shape->ranks,
                           TP_PLAN_MAX_RANKS);
    const int64_t sizes[] = {shape->rows, shape->cols[0], shape->cols[1], shape->inner[0], shape->inner[1]};
    static const char *const names[] = {"rows", "cols[0]", "cols[1]", "inner[0]", "inner[1]"};
    for (int i = 0; i < 5; i++)
        if (sizes[i] < 0)
            return tpi_message(TP_ERR_ARGUMENT, "overlap: shape.%s is %lld, must be 0 or more", names[i],
                               (long long)sizes[i]);
    const double work[] = {shape->compute_flops, shape->compute_bytes};
    for (int i = 0; i < 2; i++)
        if (!(work[i] >= 0) || !isfinite(work[i]))
            return tpi_message(TP_ERR_ARGUMENT, "overlap: shape.%s is %g, must be finite and 0 or more",
                               i == 0 ? "compute_flops" : "compute_bytes", work[i]);
    return TP_OK;
}

/* Elements that an activation between two GEMMs is applied to; the attention core is none. */
static double activated(const tp_overlap_shape *shape)
{
    switch (shape->pattern) {
    case TP_PATTERN_CHAIN:
    case TP_PATTERN_CHAIN_REDUCE: return (double)shape->rows * (double)shape->inner[1];
    case TP_PATTERN_CHAIN_BACKWARD:
    case TP_PATTERN_CHAIN_BACKWARD_REDUCE: return (double)shape->rows * (double)shape->cols[0];
    default: return 0;
    }
}

tp_status tp_overlap_costs(const tp_machine *machine, const tp_overlap_shape *shape, const tp_plan *plan,
                           tp_plan_costs *out)
{
    if (machine == NULL || shape == NULL || plan == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_overlap_costs: an argument is NULL");
    *out = (tp_plan_costs){0};
    TPI_TRY(tpi_machine_check("machine", machine));
    TPI_TRY(tpi_overlap_check_shape(shape));
    if (plan->ranks != shape->ranks || plan->pattern != (int)shape->pattern)
        return tpi_message(TP_ERR_ARGUMENT, "tp_overlap_costs: the plan is of %s on %d ranks, the shape of %s on %d",
                           tp_pattern_name((tp_pattern)plan->pattern), plan->ranks, tp_pattern_name(shape->pattern),
                           shape->ranks);
    TPI_TRY(tpi_price_check_plan(plan));
    gemm_costs(machine, shape, plan, out);
    byte_costs(shape, out);
    /* Seconds an operation, at many rows. */
    double best = row_time(product_curve(machine, shape->dtype), 1e6, true) / 1e6;
    out->compute_seconds = shape->compute_flops * best + over(shape->compute_bytes, machine->reduce_bytes_per_second) +
                           activated(shape) * machine->activation_seconds;
    out->compute_overhead = machine->call_seconds;
    out->reduce_bytes_per_second = machine->reduce_bytes_per_second;
    out->copy_bytes_per_second = machine->copy_bytes_per_second;
    out->transfer_overhead = machine->transfer_seconds;
    out->lane_seconds = machine->lanes_share_cores ? machine->lane_seconds : 0;
    out->wait_seconds = machine->wait_seconds;
    out->wake_seconds = machine->lanes_share_cores ? machine->wake_seconds : 0;
    out->link = machine->link;
    out->arrival_seconds = machine->wake_seconds;
    return TP_OK;
}
