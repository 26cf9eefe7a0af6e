/* Chrome and Perfetto's trace format: a process a rank, a thread a lane, a slice an op, a flow for each message and
 * each wait for another rank. */
#include <math.h>

#include "core/context.h"
#include "plan/price.h"
#include "plan/render.h"

/* Microseconds with three digits after the point. */
static void add_time(tpi_writer *page, const char *name, double seconds)
{
    long long nanoseconds = llround(fmax(seconds, 0) * 1e9);
    tpi_put(page, ",\"%s\":%lld.%03lld", name, nanoseconds / 1000, nanoseconds % 1000);
}

static void add_names(tpi_writer *page, const tp_timeline *timeline)
{
    for (int rank = 0; rank < timeline->plan->ranks; rank++) {
        tpi_put(page, "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
                rank > 0 ? ",\n" : "\n", rank, rank);
        tpi_put(page, ",\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}", rank,
                rank);
        for (int lane = 0; lane < TP_LANES; lane++)
            tpi_put(page, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                    rank, lane, tp_lane_name((tp_lane)lane));
    }
}

static void add_op(tpi_writer *page, const tp_timeline *timeline, int rank, int index)
{
    const tp_plan_op *op = &timeline->plan->rank[rank].op[index];
    const tp_span *span = &timeline->span[rank][index];
    char pieces[TPI_LABEL];
    tpi_label_pieces(pieces, timeline->plan, op);
    tpi_put(page, ",\n{\"name\":\"%s%s%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d", tp_op_name(op->kind),
            *pieces ? " " : "", pieces, tp_op_name(op->kind), rank, (int)op->lane);
    add_time(page, "ts", span->begin);
    add_time(page, "dur", span->end - span->begin);
    tpi_put(page, ",\"args\":{\"op\":%d,\"part\":%d,\"piece\":%d,\"pieces\":%d", index, op->part, op->piece,
            op->pieces);
    if (op->peer >= 0)
        tpi_put(page, ",\"peer\":%d", op->peer);
    tpi_put(page, ",\"critical\":%s}}", timeline->critical[rank][index] ? "true" : "false");
}

static void add_flow(tpi_writer *page, const tp_timeline *timeline, tp_wait from, tp_wait to, int id)
{
    const tp_span *before = &timeline->span[from.rank][from.op], *after = &timeline->span[to.rank][to.op];
    int lane = (int)timeline->plan->rank[from.rank].op[from.op].lane;
    tpi_put(page, ",\n{\"name\":\"data\",\"cat\":\"data\",\"ph\":\"s\",\"id\":%d,\"pid\":%d,\"tid\":%d", id, from.rank,
            lane);
    add_time(page, "ts", fmin(before->end, after->begin));
    lane = (int)timeline->plan->rank[to.rank].op[to.op].lane;
    tpi_put(page, "},\n{\"name\":\"data\",\"cat\":\"data\",\"ph\":\"f\",\"bp\":\"e\",\"id\":%d,\"pid\":%d,\"tid\":%d",
            id, to.rank, lane);
    add_time(page, "ts", after->begin);
    tpi_put(page, "}");
}

static void add_flows(tpi_writer *page, const tp_timeline *timeline)
{
    const tp_plan *plan = timeline->plan;
    int id = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            const tp_plan_op *op = &plan->rank[rank].op[i];
            if (op->kind == TP_OP_SEND && tpi_message_partner(plan, rank, i) >= 0)
                add_flow(page, timeline, (tp_wait){rank, i}, (tp_wait){op->peer, tpi_message_partner(plan, rank, i)},
                         id++);
            for (int w = 0; w < op->waits; w++)
                if (op->wait[w].rank != rank)
                    add_flow(page, timeline, op->wait[w], (tp_wait){rank, i}, id++);
        }
}

size_t tp_timeline_trace(const tp_timeline *timeline, char *text, size_t bytes)
{
    if (timeline == NULL || tpi_price_check_plan(timeline->plan) != TP_OK)
        return 0;
    tpi_writer page = {.text = text, .bytes = text != NULL ? bytes : 0};
    const tp_plan *plan = timeline->plan;
    char seconds[TPI_LABEL], hidden[TPI_LABEL];
    tpi_label_seconds(seconds, timeline->seconds);
    tpi_label_hidden(hidden, timeline->hidden, timeline->comm_seconds, timeline->seconds);
    tpi_put(&page,
            "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"algorithm\":\"%s\",\"pattern\":\"%s\",\"ranks\":%d,"
            "\"chunks\":%d,",
            tp_overlap_name((tp_overlap)plan->algorithm), tp_pattern_name((tp_pattern)plan->pattern), plan->ranks,
            plan->chunks);
    tpi_put(&page, "\"times\":\"%s\",\"seconds\":\"%s\",\"hidden\":\"%s\"},\n\"traceEvents\":[",
            timeline->measured ? "measured" : "simulated", seconds, hidden);
    add_names(&page, timeline);
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++)
            add_op(&page, timeline, rank, i);
    add_flows(&page, timeline);
    tpi_put(&page, "\n]}\n");
    return tpi_put_end(&page);
}
