/* Pictures are well-formed, complete, and say what their timeline says. */
#include "costs.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TPT_HAVE_CJSON
#include <cjson/cJSON.h>
#endif

typedef size_t (*render_fn)(const tp_timeline *timeline, char *text, size_t bytes);

static size_t svg(const tp_timeline *timeline, char *text, size_t bytes)
{
    return tp_timeline_svg(timeline, NULL, text, bytes);
}

static char *rendered(render_fn render, const tp_timeline *timeline)
{
    size_t bytes = render(timeline, NULL, 0);
    char *text = malloc(bytes + 1);
    cr_assert(bytes > 0 && text != NULL);
    cr_assert_eq(render(timeline, text, bytes + 1), bytes);
    cr_assert_eq(strlen(text), bytes);
    return text;
}

static const char *name_end(const char *at)
{
    return at + strcspn(at, " />\n");
}

/* Tags close in order, attributes are quoted and not repeated, text has no bare & or <. */
static void check_xml(const char *text)
{
    char open[32][32];
    int depth = 0, roots = 0;
    for (const char *at = text; *at != '\0';) {
        if (*at != '<') {
            cr_assert(*at != '&' && (depth > 0 || *at == '\n'), "'%.20s'", at);
            at++;
            continue;
        }
        bool closing = at[1] == '/';
        const char *name = at + 1 + closing, *end = name_end(name);
        size_t length = (size_t)(end - name);
        cr_assert(length > 0 && length < 32);
        if (closing) {
            cr_assert(depth > 0 && strncmp(open[--depth], name, length) == 0 && open[depth][length] == '\0',
                      "closed %.20s", name);
            cr_assert_eq(*end, '>');
            at = end + 1;
            continue;
        }
        while (*end == ' ') {
            const char *value = strchr(end, '='), *quote = NULL;
            if (value != NULL && value[1] == '"')
                quote = strchr(value + 2, '"');
            if (quote == NULL) {
                cr_assert(false, "an attribute without a value in '%.40s'", at);
                return;
            }
            end = quote + 1;
        }
        bool empty = *end == '/';
        cr_assert(end[empty] == '>', "'%.40s'", at);
        roots += depth == 0;
        if (!empty) {
            memcpy(open[depth], name, length);
            open[depth++][length] = '\0';
            cr_assert_lt(depth, 32);
        }
        at = end + empty + 1;
    }
    cr_assert_eq(depth, 0);
    cr_assert_eq(roots, 1);
}

static int count(const char *text, const char *words)
{
    int found = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
        found++;
    return found;
}

static int count_ops(const tp_plan *plan, bool with_ends)
{
    int ops = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            tp_op_kind kind = plan->rank[rank].op[i].kind;
            ops += with_ends || (kind != TP_OP_ENTER && kind != TP_OP_LEAVE);
        }
    return ops;
}

static tp_timeline *timeline_of(tp_overlap algorithm, tp_pattern pattern, int ranks, int chunks)
{
    tp_plan_costs costs = tpt_costs(1e-3, 1.5e-3);
    costs.compute_seconds = 2e-4;
    costs.reduce_bytes_per_second = TPT_BYTES * 4e3;
    costs.link.latency_seconds = 5e-6;
    return tpt_simulate(tpt_plan(algorithm, pattern, ranks, chunks), &costs);
}

static void discard(tp_timeline *timeline)
{
    tp_plan_destroy((tp_plan *)timeline->plan);
    tp_timeline_destroy(timeline);
}

Test(render, svg_of_every_plan)
{
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
        for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
            for (int ranks = 1; ranks <= 5; ranks += 2) {
                tp_timeline *timeline = timeline_of((tp_overlap)algorithm, (tp_pattern)pattern, ranks, 2);
                char *text = rendered(svg, timeline), words[80];
                check_xml(text);
                snprintf(words, sizeof words, "%s, %s, %d rank", tp_overlap_name((tp_overlap)algorithm),
                         tp_pattern_name((tp_pattern)pattern), ranks);
                cr_assert(strstr(text, words) != NULL);
                cr_assert_eq(count(text, "<title>"), count_ops(timeline->plan, false));
                cr_assert(strstr(text, "simulated") != NULL);
                cr_assert_eq(count(text, "nan"), 0);
                free(text);
                discard(timeline);
            }
}

/* Boxes narrower than a rim have a thin one; ranks of two digits make room for the names of lanes. */
Test(render, svg_of_many_small_boxes)
{
    tp_timeline *timeline = timeline_of(TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 11, 16);
    char *text = rendered(svg, timeline);
    check_xml(text);
    int thin = count(text, "style=\"stroke-width:.3\"");
    cr_assert(thin > 0 && thin <= count(text, " i\" x="), "%d boxes", thin);
    cr_assert(strstr(text, "x=\"6.0\"") != NULL || strstr(text, "x=\"6\"") != NULL);
    free(text);
    discard(timeline);
    timeline = timeline_of(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 2, 1);
    text = rendered(svg, timeline);
    cr_assert(count(text, "stroke-width:.3") == 0 && strstr(text, "x=\"6\"") == NULL &&
              strstr(text, "x=\"6.0\"") == NULL);
    free(text);
    discard(timeline);
}

/* Of next to no communication no share is told, by nobody. */
Test(render, nothing_is_hidden_of_nothing)
{
    static const double links[] = {16e-3, 0.1e-3, 1e-9}; /* 8 ms, 0.6 % of the whole, less than a microsecond */
    for (int i = 0; i < 3; i++) {
        tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4);
        tp_plan_costs costs = tpt_costs(8e-3, links[i]);
        tp_timeline *timeline = tpt_simulate(plan, &costs);
        char *picture = rendered(svg, timeline), *events = rendered(tp_timeline_trace, timeline);
        cr_assert_eq(strstr(picture, "hidden -, ") != NULL, i > 0, "%s", picture);
        cr_assert_eq(strstr(events, "\"hidden\":\"-\"") != NULL, i > 0, "%s", events);
        free(picture);
        free(events);
        discard(timeline);
    }
}

/* The totals in the picture are those of the closed form: 4 chunks, link as long as the GEMM. */
Test(render, svg_tells_the_figures)
{
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 4);
    tp_plan_costs costs = tpt_costs(8e-3, 16e-3);
    tp_timeline *timeline = tpt_simulate(plan, &costs);
    char *text = rendered(svg, timeline);
    cr_assert(strstr(text, "simulated: 9.00 ms, of it compute 8.00 ms; communication 8.00 ms, hidden 87.5 %") != NULL,
              "%s", text);
    cr_assert(strstr(text, "exposed 1.00 ms") != NULL);
    cr_assert_eq(count(text, "<rect class=\"x\""), 2 + 1, "one hatched stretch a rank, and the legend");
    free(text);
    discard(timeline);
}

Test(render, messages_have_arrows)
{
    tp_timeline *timeline = timeline_of(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 3, 2);
    char *text = rendered(svg, timeline);
    cr_assert_geq(count(text, "<path class=\"a\""), 3 * 2 * 2);
    free(text);
    discard(timeline);
}

Test(render, two_timelines_share_a_scale)
{
    tp_timeline *simulated = timeline_of(TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 2, 2), *measured = NULL;
    tp_span *spans[2];
    for (int rank = 0; rank < 2; rank++) {
        int ops = simulated->plan->rank[rank].count;
        spans[rank] = malloc((size_t)ops * sizeof(tp_span));
        for (int i = 0; i < ops; i++) /* half as fast */
            spans[rank][i] =
                (tp_span){.begin = 2 * simulated->span[rank][i].begin, .end = 2 * simulated->span[rank][i].end};
    }
    cr_assert_eq(tp_timeline_create(simulated->plan, (const tp_span *const *)spans, &measured), TP_OK);
    size_t bytes = tp_timeline_svg(simulated, measured, NULL, 0);
    char *text = malloc(bytes + 1);
    cr_assert_eq(tp_timeline_svg(simulated, measured, text, bytes + 1), bytes);
    check_xml(text);
    cr_assert(strstr(text, "simulated: ") != NULL && strstr(text, "measured: ") != NULL);
    cr_assert_eq(count(text, "<title>"), 2 * count_ops(simulated->plan, false));
    free(text);
    tp_timeline *other = timeline_of(TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 2, 2);
    cr_assert_eq(tp_timeline_svg(simulated, other, NULL, 0), 0, "timelines of two plans");
    discard(other);
    tp_timeline_destroy(measured);
    free(spans[0]);
    free(spans[1]);
    discard(simulated);
}

Test(render, too_little_room)
{
    tp_timeline *timeline = timeline_of(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 2);
    static const render_fn renders[] = {svg, tp_timeline_trace};
    for (int r = 0; r < 2; r++) {
        char *whole = rendered(renders[r], timeline), part[101];
        memset(part, 'x', sizeof part);
        cr_assert_eq(renders[r](timeline, part, 100), strlen(whole));
        cr_assert(strncmp(part, whole, 99) == 0 && part[99] == '\0' && part[100] == 'x');
        free(whole);
    }
    cr_assert_eq(tp_timeline_svg(NULL, NULL, NULL, 0), 0);
    cr_assert_eq(tp_timeline_trace(NULL, NULL, 0), 0);
    discard(timeline);
}

Test(render, locale_changes_nothing)
{
    tp_timeline *timeline = timeline_of(TP_OVERLAP_RING, TP_PATTERN_GEMM_SCATTER, 2, 3);
    char *plain_svg = rendered(svg, timeline), *plain_trace = rendered(tp_timeline_trace, timeline);
    static const char *const names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8"};
    for (int i = 0; i < 3; i++)
        if (setlocale(LC_ALL, names[i]) != NULL) {
            char *other_svg = rendered(svg, timeline), *other_trace = rendered(tp_timeline_trace, timeline);
            cr_assert_str_eq(plain_svg, other_svg);
            cr_assert_str_eq(plain_trace, other_trace);
            free(other_svg);
            free(other_trace);
        }
    free(plain_svg);
    free(plain_trace);
    discard(timeline);
}

#ifdef TPT_HAVE_CJSON
static const char *text_of(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    cr_assert(cJSON_IsNumber(item), "no number %s", name);
    return item->valuedouble;
}

static void check_slice(const tp_timeline *timeline, const cJSON *event)
{
    int rank = (int)number_of(event, "pid"), op = (int)number_of(cJSON_GetObjectItemCaseSensitive(event, "args"), "op");
    cr_assert(rank < timeline->plan->ranks && op < timeline->plan->rank[rank].count);
    const tp_span *span = &timeline->span[rank][op];
    cr_assert_float_eq(number_of(event, "ts"), span->begin * 1e6, 1e-3);
    cr_assert_float_eq(number_of(event, "dur"), (span->end - span->begin) * 1e6, 1e-3);
    cr_assert_eq((int)number_of(event, "tid"), (int)timeline->plan->rank[rank].op[op].lane);
    cr_assert_str_eq(text_of(event, "cat"), tp_op_name(timeline->plan->rank[rank].op[op].kind));
}

Test(render, trace)
{
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++) {
        tp_timeline *timeline = timeline_of((tp_overlap)algorithm, TP_PATTERN_CHAIN, 3, 2);
        char *text = rendered(tp_timeline_trace, timeline);
        cJSON *root = cJSON_Parse(text);
        cr_assert_not_null(root);
        int slices = 0, starts = 0, finishes = 0;
        const cJSON *event;
        cJSON_ArrayForEach(event, cJSON_GetObjectItemCaseSensitive(root, "traceEvents"))
        {
            const char *phase = text_of(event, "ph");
            starts += *phase == 's';
            finishes += *phase == 'f';
            if (*phase == 'X') {
                slices++;
                check_slice(timeline, event);
            }
        }
        cr_assert_eq(slices, count_ops(timeline->plan, true));
        cr_assert_eq(starts, finishes);
        cJSON_Delete(root);
        free(text);
        discard(timeline);
    }
}
#endif
