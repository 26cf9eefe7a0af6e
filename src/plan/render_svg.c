/* Lanes x time. One band a rank, one row a lane that has work; exposed communication is hatched on the compute row;
 * lines with arrow heads are messages and waits for other ranks; boxes with a dark rim are on the critical path. */
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "plan/patterns.h"
#include "plan/price.h"
#include "plan/render.h"

#define WIDTH 960.0
#define LEFT 112.0
#define RIGHT 24.0
#define TOP 78.0    /* of the first band */
#define HEAD 30.0   /* between two timelines: the second one's line of figures */
#define BOTTOM 66.0 /* axis and legend */
#define GAP 3.0     /* between lanes */
#define BAND 12.0   /* between ranks */
#define MOST_ARROWS 600
#define NARROW 2.8    /* a box whose rim would leave nothing of its colour has a thin one */
#define CHARACTER 6.1 /* width of one in a box, about */

typedef struct picture {
    tpi_writer *page;
    const tp_plan *plan;
    double lane_height;
    int lanes;                /* rows a rank */
    int row[TP_LANES];        /* of each lane; -1: it has no work */
    double seconds;           /* at the right edge */
    double top;               /* of the timeline being drawn */
} picture;

/* Classes of boxes: their colours, and their words in the legend. */
static const struct {
    char class;
    const char *word, *colour;
} looks[] = {
    {'g', "gemm", "#4477aa"},       {'h', "second gemm", "#6c9bd2"}, {'k', "compute", "#44aa99"},
    {'r', "reduce", "#228833"},     {'y', "copy", "#999999"},        {'p', "pull", "#d98324"},
    {'u', "push", "#c2691a"},       {'s', "send", "#d9604c"},        {'v', "receive", "#c98a70"},
    {'c', "collective", "#c4577d"}, {'o', "other", "#888888"},
};

enum { LOOKS = sizeof looks / sizeof *looks };

static int look_of(const tp_plan_op *op)
{
    switch (op->kind) {
    case TP_OP_GEMM: return op->part == 0 ? 0 : 1;
    case TP_OP_COMPUTE: return 2;
    case TP_OP_REDUCE: return 3;
    case TP_OP_COPY: return 4;
    case TP_OP_PULL: return 5;
    case TP_OP_PUSH: return 6;
    case TP_OP_SEND: return 7;
    case TP_OP_RECV: return 8;
    case TP_OP_COLLECTIVE: return 9;
    default: return 10;
    }
}

static bool is_drawn(const tp_plan_op *op)
{
    return op->kind != TP_OP_ENTER && op->kind != TP_OP_LEAVE;
}

static double x_of(const picture *p, double seconds)
{
    return p->seconds > 0 ? LEFT + (WIDTH - LEFT - RIGHT) * seconds / p->seconds : LEFT;
}

static double y_of(const picture *p, int rank, tp_lane lane)
{
    double band = p->lanes * (p->lane_height + GAP) - GAP + BAND;
    return p->top + rank * band + p->row[lane] * (p->lane_height + GAP);
}

static double timeline_height(const picture *p)
{
    return p->plan->ranks * (p->lanes * (p->lane_height + GAP) - GAP + BAND) - BAND;
}

static void attribute(const picture *p, const char *name, double value)
{
    tpi_put(p->page, " %s=\"", name);
    tpi_put_tenth(p->page, value);
    tpi_put(p->page, "\"");
}

static void rectangle(const picture *p, const char *class, double x, double y, double width, double height)
{
    tpi_put(p->page, "<rect class=\"%s\"", class);
    attribute(p, "x", x);
    attribute(p, "y", y);
    attribute(p, "width", width);
    attribute(p, "height", height);
    if (width < NARROW && strchr(class, 'i') != NULL)
        tpi_put(p->page, " style=\"stroke-width:.3\"");
    tpi_put(p->page, "/>");
}

static void begin_text(const picture *p, const char *class, double x, double y)
{
    tpi_put(p->page, "<text class=\"%s\"", class);
    attribute(p, "x", x);
    attribute(p, "y", y);
    tpi_put(p->page, ">");
}

static void text(const picture *p, const char *class, double x, double y, const char *words)
{
    begin_text(p, class, x, y);
    tpi_put(p->page, "%s</text>", words);
}

static void style(const picture *p)
{
    tpi_put(p->page,
            "<style>text{font:11px "
            "system-ui,sans-serif;fill:#24292f}.t{font-size:15px;font-weight:600}.n{fill:#57606a}.e{text-anchor:end}"
            ".m{text-anchor:middle}.b{font-size:10px;fill:#fff;text-anchor:middle;pointer-events:none;paint-order:"
            "stroke;stroke:#0004;stroke-width:2}"
            ".card{fill:#fff;stroke:#d0d7de}.lane{fill:#f3f5f7}.grid{stroke:#d0d7de;stroke-dasharray:2 3}"
            ".a{fill:none;stroke:#57606a;stroke-width:.8;opacity:.75;marker-end:url(#head)}#head path{fill:#57606a}"
            ".x{fill:url(#hatch);stroke:#c62828;stroke-width:.8}.i{stroke:#111;stroke-width:1.4}.d{fill:#b42318;font-"
            "weight:600}");
    for (int i = 0; i < LOOKS; i++)
        tpi_put(p->page, ".%c{fill:%s}", looks[i].class, looks[i].colour);
    tpi_put(p->page, "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.n{fill:#9198a1}.b{fill:#fff}.card{fill:#"
                     "0d1117;stroke:#30363d}"
                     ".lane{fill:#1a2029}.grid{stroke:#30363d}.a{stroke:#9198a1}#head "
                     "path{fill:#9198a1}.i{stroke:#f0f6fc}.d{fill:#ff7b72}}</style>");
    tpi_put(p->page, "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
                     "patternTransform=\"rotate(45)\">"
                     "<path d=\"M0 0V6\" stroke=\"#e53935\" stroke-width=\"3.2\"/></pattern><marker id=\"head\" "
                     "viewBox=\"0 0 6 6\" refX=\"5.5\" "
                     "refY=\"3\" markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L6 3L0 "
                     "6z\"/></marker></defs>\n");
}

/* Steps of 1, 2 or 5 times a power of ten, eight at most. */
static double tick_step(double seconds)
{
    double step = pow(10, floor(log10(seconds / 8)));
    static const double factors[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (seconds / (step * factors[i]) <= 8)
            return step * factors[i];
    return seconds;
}

static void axis(const picture *p, double bottom)
{
    if (!(p->seconds > 0))
        return;
    double step = tick_step(p->seconds);
    for (int i = 0; i * step <= p->seconds * 1.0001; i++) {
        char label[TPI_LABEL];
        double x = x_of(p, i * step);
        tpi_put(p->page, "<path class=\"grid\" d=\"M");
        tpi_put_tenth(p->page, x);
        tpi_put(p->page, " ");
        tpi_put_tenth(p->page, TOP - 4);
        tpi_put(p->page, "V");
        tpi_put_tenth(p->page, bottom + 4);
        tpi_put(p->page, "\"/>");
        tpi_label_round(label, i * step);
        text(p, "n m", x, bottom + 18, label);
    }
    tpi_put(p->page, "\n");
}

static void lane_labels(const picture *p)
{
    for (int rank = 0; rank < p->plan->ranks; rank++) {
        double middle = y_of(p, rank, TP_LANE_COMPUTE) + (p->lanes * (p->lane_height + GAP) - GAP) / 2 + 4;
        begin_text(p, "", p->plan->ranks <= 10 ? 16 : 6, middle); /* two digits reach the lanes' names */
        tpi_put(p->page, "rank %d</text>", rank);
        for (int lane = 0; lane < TP_LANES; lane++) {
            if (p->row[lane] < 0)
                continue;
            double y = y_of(p, rank, (tp_lane)lane);
            text(p, "n e", LEFT - 8, y + p->lane_height / 2 + 4, tp_lane_name((tp_lane)lane));
            rectangle(p, "lane", LEFT, y, WIDTH - LEFT - RIGHT, p->lane_height);
        }
        tpi_put(p->page, "\n");
    }
}

static void tooltip(const picture *p, const tp_timeline *timeline, int rank, int index, const char *pieces)
{
    const tp_plan_op *op = &p->plan->rank[rank].op[index];
    const tp_span *span = &timeline->span[rank][index];
    char begin[TPI_LABEL], length[TPI_LABEL];
    tpi_label_seconds(begin, span->begin);
    tpi_label_seconds(length, span->end - span->begin);
    tpi_put(p->page, "<title>%s %s", tp_op_name(op->kind), pieces);
    if (op->peer >= 0)
        tpi_put(p->page, ", peer %d", op->peer);
    tpi_put(p->page, ": %s at %s</title>", length, begin);
}

static void box(const picture *p, const tp_timeline *timeline, int rank, int index)
{
    const tp_plan_op *op = &p->plan->rank[rank].op[index];
    const tp_span *span = &timeline->span[rank][index];
    char pieces[TPI_LABEL];
    const char class[] = {looks[look_of(op)].class, timeline->critical[rank][index] ? ' ' : '\0', 'i', '\0'};
    double x = x_of(p, span->begin), width = fmax(x_of(p, span->end) - x - 0.6, 0.4), y = y_of(p, rank, op->lane);
    tpi_label_pieces(pieces, p->plan, op);
    tpi_put(p->page, "<g>");
    tooltip(p, timeline, rank, index, pieces);
    rectangle(p, class, x, y, width, p->lane_height);
    if (op->kind == TP_OP_COLLECTIVE && x_of(p, span->compute_end) - x_of(p, span->compute_begin) > 1)
        rectangle(p, "r", x_of(p, span->compute_begin), y,
                  x_of(p, span->compute_end) - x_of(p, span->compute_begin) - 0.6, p->lane_height);
    tpi_put(p->page, "</g>\n");
}

/* Over the hatching, where there is room. */
static void label(const picture *p, const tp_timeline *timeline, int rank, int index)
{
    const tp_plan_op *op = &p->plan->rank[rank].op[index];
    const tp_span *span = &timeline->span[rank][index];
    char pieces[TPI_LABEL];
    double begin = x_of(p, span->begin), width = x_of(p, span->end) - begin;
    tpi_label_pieces(pieces, p->plan, op);
    if (*pieces != '\0' && width > (double)strlen(pieces) * CHARACTER + 2.6)
        text(p, "b", begin + width / 2, y_of(p, rank, op->lane) + p->lane_height / 2 + 3.5, pieces);
}

/* The part of [begin, end) before the rank's first computing after `begin`; and where that ends. */
static double next_change(const tp_span *span, int count, double from, double end, bool *computing)
{
    double change = end;
    *computing = false;
    for (int i = 0; i < count; i++) {
        if (span[i].compute_begin <= from && from < span[i].compute_end) {
            *computing = true;
            return fmin(span[i].compute_end, end);
        }
        if (span[i].compute_begin > from && span[i].compute_end > span[i].compute_begin)
            change = fmin(change, span[i].compute_begin);
    }
    return change;
}

/* Hatches, on the compute row, where the rank communicates and does not compute. Stretches that meet are drawn as
 * one. */
static void exposed(const picture *p, const tp_timeline *timeline, int rank)
{
    const tp_span *span = timeline->span[rank];
    int count = p->plan->rank[rank].count;
    double y = y_of(p, rank, TP_LANE_COMPUTE), drawn = 0;
    for (;;) {
        double begin = INFINITY, end = 0; /* the next communication that is not drawn yet */
        for (int i = 0; i < count; i++) {
            double from = fmax(span[i].comm_begin, drawn);
            if (span[i].comm_end > from && from < begin) {
                begin = from;
                end = span[i].comm_end;
            }
        }
        if (!(begin < INFINITY))
            break;
        bool computing;
        drawn = next_change(span, count, begin, end, &computing);
        double x = x_of(p, begin), width = x_of(p, drawn) - x;
        if (!computing && width > 0.8)
            rectangle(p, "x", x, y + 0.5, width, p->lane_height - 1);
        if (!(drawn > begin))
            break;
    }
}

typedef struct point {
    double x, y;
} point;

/* A curve that leaves a box at its bottom or top and arrives at the facing side of another. */
static void curve(const picture *p, point from, point to)
{
    if (from.y < to.y)
        from.y += p->lane_height;
    else
        to.y += p->lane_height;
    double bend = (to.y - from.y) * 0.45;
    const double numbers[] = {from.x, from.y, from.x, from.y + bend, to.x, to.y - bend, to.x, to.y};
    static const char *const marks[] = {"M", " ", "C", " ", " ", " ", " ", " "};
    tpi_put(p->page, "<path class=\"a\" d=\"");
    for (int i = 0; i < 8; i++) {
        tpi_put(p->page, "%s", marks[i]);
        tpi_put_tenth(p->page, numbers[i]);
    }
    tpi_put(p->page, "\"/>\n");
}

/* From the end of what was waited for, or, for a message, from its sender, to an op. */
static void arrow(const picture *p, const tp_timeline *timeline, tp_wait from, tp_wait to)
{
    const tp_plan_op *source = &p->plan->rank[from.rank].op[from.op], *target = &p->plan->rank[to.rank].op[to.op];
    const tp_span *before = &timeline->span[from.rank][from.op], *after = &timeline->span[to.rank][to.op];
    bool message = source->kind == TP_OP_SEND && target->kind == TP_OP_RECV;
    point begin = {x_of(p, message ? before->begin : before->end) + (message ? 3 : -1),
                   y_of(p, from.rank, source->lane)};
    point end = {x_of(p, after->begin) + (message ? 3 : 1), y_of(p, to.rank, target->lane)};
    curve(p, begin, end);
}

/* A one-sided copy that waits for nobody: between its box and the compute row of the rank whose memory it reads or
 * writes. */
static void copy_arrow(const picture *p, const tp_timeline *timeline, int rank, int index)
{
    const tp_plan_op *op = &p->plan->rank[rank].op[index];
    double x = x_of(p, timeline->span[rank][index].begin) + 3;
    point own = {x, y_of(p, rank, op->lane)}, other = {x, y_of(p, op->peer, TP_LANE_COMPUTE)};
    curve(p, op->kind == TP_OP_PULL ? other : own, op->kind == TP_OP_PULL ? own : other);
}

/* Arrows of one op: what it gets from other ranks. Returns how many. */
static int arrows_of(const picture *p, const tp_timeline *timeline, int rank, int index)
{
    const tp_plan_op *op = &p->plan->rank[rank].op[index];
    int count = 0;
    if (op->kind == TP_OP_SEND && tpi_message_partner(p->plan, rank, index) >= 0) {
        if (timeline != NULL)
            arrow(p, timeline, (tp_wait){rank, index}, (tp_wait){op->peer, tpi_message_partner(p->plan, rank, index)});
        count++;
    }
    for (int w = 0; w < op->waits && is_drawn(op); w++) {
        tp_wait on = op->wait[w];
        if (on.rank == rank || !is_drawn(&p->plan->rank[on.rank].op[on.op]))
            continue;
        if (timeline != NULL)
            arrow(p, timeline, on, (tp_wait){rank, index});
        count++;
    }
    if (count == 0 && (op->kind == TP_OP_PULL || op->kind == TP_OP_PUSH)) {
        if (timeline != NULL)
            copy_arrow(p, timeline, rank, index);
        count++;
    }
    return count;
}

static int count_arrows(const picture *p)
{
    int count = 0;
    for (int rank = 0; rank < p->plan->ranks; rank++)
        for (int i = 0; i < p->plan->rank[rank].count; i++)
            count += arrows_of(p, NULL, rank, i);
    return count;
}

static void figures(const picture *p, const tp_timeline *timeline, double y)
{
    char seconds[TPI_LABEL], compute[TPI_LABEL], comm[TPI_LABEL], exposed_time[TPI_LABEL], hidden[TPI_LABEL];
    tpi_label_seconds(seconds, timeline->seconds);
    tpi_label_seconds(compute, timeline->compute_seconds);
    tpi_label_seconds(comm, timeline->comm_seconds);
    tpi_label_seconds(exposed_time, timeline->exposed_seconds);
    tpi_label_hidden(hidden, timeline->hidden, timeline->comm_seconds, timeline->seconds);
    begin_text(p, "n", 16, y);
    tpi_put(p->page, "%s: %s, of it compute %s; communication %s", timeline->measured ? "measured" : "simulated",
            seconds, compute, comm);
    if (timeline->comm_seconds > 0)
        tpi_put(p->page, ", hidden %s, <tspan class=\"d\">exposed %s</tspan>", hidden, exposed_time);
    tpi_put(p->page, "</text>\n");
}

static void draw_timeline(const picture *p, const tp_timeline *timeline, bool arrows)
{
    figures(p, timeline, p->top - 12);
    lane_labels(p);
    for (int rank = 0; rank < p->plan->ranks; rank++) {
        for (int i = 0; i < p->plan->rank[rank].count; i++)
            if (is_drawn(&p->plan->rank[rank].op[i]))
                box(p, timeline, rank, i);
        exposed(p, timeline, rank);
        for (int i = 0; i < p->plan->rank[rank].count; i++)
            if (is_drawn(&p->plan->rank[rank].op[i]))
                label(p, timeline, rank, i);
        tpi_put(p->page, "\n");
    }
    for (int rank = 0; rank < p->plan->ranks && arrows; rank++)
        for (int i = 0; i < p->plan->rank[rank].count; i++)
            arrows_of(p, timeline, rank, i);
}

static double legend_entry(const picture *p, const char *class, const char *words, double x, double y)
{
    rectangle(p, class, x, y - 9, 14, 10);
    text(p, "n", x + 19, y, words);
    return x + 19 + (double)strlen(words) * CHARACTER * 1.1 + 14;
}

static bool shows(const tp_plan_op *op, int look)
{
    bool adds = op->kind == TP_OP_COLLECTIVE && op->collective != TP_COLLECTIVE_ALL_GATHER;
    return is_drawn(op) && (look_of(op) == look || (adds && looks[look].class == 'r'));
}

static void legend(const picture *p, double y, bool simulated)
{
    double x = 16;
    for (int i = 0; i < LOOKS; i++) {
        bool used = false;
        for (int rank = 0; rank < p->plan->ranks; rank++)
            for (int k = 0; k < p->plan->rank[rank].count; k++)
                used = used || shows(&p->plan->rank[rank].op[k], i);
        const char class[] = {looks[i].class, '\0'};
        if (used)
            x = legend_entry(p, class, looks[i].word, x, y);
    }
    x = legend_entry(p, "x", "exposed communication", x, y);
    if (simulated)
        x = legend_entry(p, "lane i", "critical path", x, y);
    bool sliced = tpi_pattern_is_sliced((tp_pattern)p->plan->pattern);
    text(p, "n", x, y, sliced ? "rA.B: rank A's rows, slice B of columns" : "rA.B: chunk B of rank A's rows");
    tpi_put(p->page, "\n");
}

static picture lay_out(tpi_writer *page, const tp_timeline *first, const tp_timeline *second)
{
    picture p = {.page = page, .plan = first->plan, .row = {0, -1, -1}, .lanes = 1, .top = TOP};
    for (int rank = 0; rank < p.plan->ranks; rank++)
        for (int i = 0; i < p.plan->rank[rank].count; i++) {
            int lane = (int)p.plan->rank[rank].op[i].lane;
            if (p.row[lane] < 0)
                p.row[lane] = 1;
        }
    for (int lane = 1; lane < TP_LANES; lane++)
        if (p.row[lane] > 0)
            p.row[lane] = p.lanes++;
    p.lane_height = p.plan->ranks <= 4 ? 22 : p.plan->ranks <= 8 ? 18 : 12;
    p.seconds = second != NULL ? fmax(first->seconds, second->seconds) : first->seconds;
    return p;
}

static void draw(picture *p, const tp_timeline *first, const tp_timeline *second)
{
    const tp_plan *plan = p->plan;
    double one = timeline_height(p), bottom = TOP + one + (second != NULL ? HEAD + one : 0), height = bottom + BOTTOM;
    tpi_put(p->page,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\">\n",
            WIDTH, height, WIDTH, height);
    style(p);
    tpi_put(p->page, "<rect class=\"card\" x=\"0\" y=\"0\" width=\"%.0f\" height=\"%.0f\" rx=\"8\"/>", WIDTH, height);
    begin_text(p, "t", 16, 30);
    tpi_put(p->page, "%s, %s, %d rank%s, %d chunk%s</text>\n", tp_overlap_name((tp_overlap)plan->algorithm),
            tp_pattern_name((tp_pattern)plan->pattern), plan->ranks, plan->ranks == 1 ? "" : "s", plan->chunks,
            plan->chunks == 1 ? "" : "s");
    bool arrows = count_arrows(p) <= MOST_ARROWS;
    axis(p, bottom);
    draw_timeline(p, first, arrows);
    if (second != NULL) {
        p->top += one + HEAD;
        draw_timeline(p, second, arrows);
    }
    legend(p, height - 18, !first->measured);
    tpi_put(p->page, "</svg>\n");
}

size_t tp_timeline_svg(const tp_timeline *first, const tp_timeline *second, char *text_out, size_t bytes)
{
    if (first == NULL || tpi_price_check_plan(first->plan) != TP_OK || (second != NULL && second->plan != first->plan))
        return 0;
    tpi_writer page = {.text = text_out, .bytes = text_out != NULL ? bytes : 0};
    picture p = lay_out(&page, first, second);
    draw(&p, first, second);
    return tpi_put_end(&page);
}
