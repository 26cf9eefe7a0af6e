/* Reads the text form (plan/text.h). The text is gone through twice: to count, then, with memory for so much, to fill.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "plan/memory.h"
#include "plan/patterns.h"
#include "plan/text.h"

#define MAX_OPS (1 << 24)

typedef struct parser {
    const char *at, *line_start;
    int line;
    bool fill;            /* the second time through */
    tp_plan *plan;        /* the first time through: the header and the counts of ops */
    tpi_plan_size size;   /* so far */
    tpi_plan_block block; /* room that is left */
    tp_plan_op op;        /* being read */
    int rank;
} parser;

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool __attribute__((format(printf, 2, 3))) wrong(const parser *p, const char *format, ...)
{
    char what[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    tpi_message(TP_ERR_FORMAT, "plan text, line %d, column %ld: %s", p->line, (long)(p->at - p->line_start) + 1, what);
    return false;
}

/* Bytes of the line's end that stands here, "\n" or "\r\n"; 0: none does. */
static int newline(const parser *p)
{
    return p->at[0] == '\n' ? 1 : p->at[0] == '\r' && p->at[1] == '\n' ? 2 : 0;
}

/* What stands here: the end, a whole number, or one character. */
static void describe_found(const parser *p, char found[32])
{
    int digits = 0;
    while (is_digit(p->at[digits]) && digits < 20)
        digits++;
    if (digits > 0)
        snprintf(found, 32, "%.*s%s", digits, p->at, is_digit(p->at[digits]) ? "..." : "");
    else if (*p->at == '\0' || newline(p) > 0)
        snprintf(found, 32, *p->at != '\0' ? "the line's end" : "the end");
    else
        snprintf(found, 32, *p->at >= ' ' && *p->at <= '~' ? "'%c'" : "byte 0x%02x", (unsigned)(unsigned char)*p->at);
}

/* False, with the message. */
static bool __attribute__((format(printf, 2, 3))) expected(const parser *p, const char *format, ...)
{
    char what[128], found[32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    describe_found(p, found);
    return wrong(p, "expected %s, found %s", what, found);
}

static void skip_blanks(parser *p)
{
    while (*p->at == ' ')
        p->at++;
}

/* Steps over `text` if it stands here. */
static bool accept(parser *p, const char *text)
{
    skip_blanks(p);
    size_t length = strlen(text);
    if (strncmp(p->at, text, length) != 0)
        return false;
    p->at += length;
    return true;
}

static bool require(parser *p, const char *text)
{
    return accept(p, text) || expected(p, "\"%s\"", text);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || c == '-';
}

/* The word that stands here, at most 31 letters; not stepped over. */
static size_t peek_word(parser *p, char word[32])
{
    skip_blanks(p);
    size_t length = 0;
    while (length < 31 && is_word(p->at[length])) {
        word[length] = p->at[length];
        length++;
    }
    word[length] = '\0';
    return length;
}

static bool accept_word(parser *p, const char *wanted)
{
    char word[32];
    size_t length = peek_word(p, word);
    if (strcmp(word, wanted) != 0)
        return false;
    p->at += length;
    return true;
}

/* A number from low to high. */
static bool number(parser *p, const char *what, int low, int high, int *out)
{
    skip_blanks(p);
    const char *digit = p->at;
    int64_t value = 0;
    while (is_digit(*digit) && value <= high)
        value = 10 * value + (*digit++ - '0');
    if (digit == p->at || value < low || value > high)
        return expected(p, "%s from %d to %d", what, low, high);
    p->at = digit;
    *out = (int)value;
    return true;
}

/* piece, xpieces, /step; all of them below `total`. */
static bool pieces(parser *p, int total, int *piece, int *count, int *step)
{
    const char *begin = p->at;
    *count = *step = 1;
    if (!number(p, "piece", 0, total - 1, piece))
        return false;
    if (accept(p, "x") && !number(p, "number of pieces", 0, total, count))
        return false;
    if (accept(p, "/") && !number(p, "step", 0, total, step))
        return false;
    int64_t last = (int64_t)*piece + (int64_t)(*count - 1) * *step;
    if (*count > 0 && last >= total) {
        p->at = begin;
        return wrong(p, "the last of %d pieces from %d is %lld, must be 0 to %d", *count, *piece, (long long)last,
                     total - 1);
    }
    return true;
}

static int pieces_of_plan(const parser *p)
{
    return p->plan->ranks * p->plan->chunks;
}

static bool region(parser *p, tp_region *out)
{
    *out = (tp_region){.rank = p->rank};
    skip_blanks(p);
    if (is_digit(*p->at) && (!number(p, "rank", 0, p->plan->ranks - 1, &out->rank) || !require(p, ":")))
        return false;
    char word[32];
    size_t length = peek_word(p, word);
    int buffer = 0;
    while (buffer < TP_BUFFERS && strcmp(word, tp_buffer_name((tp_buffer)buffer)) != 0)
        buffer++;
    if (buffer == TP_BUFFERS)
        return expected(p, "a buffer's name");
    out->buffer = (tp_buffer)buffer;
    p->at += length;
    if (accept(p, "#") && !number(p, "slot", 0, p->plan->ranks - 1, &out->slot))
        return false;
    int total = pieces_of_plan(p);
    if (out->buffer == TP_BUFFER_GRADIENT)
        total = tpi_gradient_pieces((tp_pattern)p->plan->pattern, p->plan->chunks);
    return require(p, "[") && pieces(p, total, &out->piece, &out->pieces, &out->step) && require(p, "]");
}

static bool regions(parser *p, tp_region **list, int *count)
{
    *list = p->block.region;
    do {
        tp_region next;
        if (!region(p, &next))
            return false;
        if (p->fill)
            *p->block.region++ = next;
        p->size.regions++;
        (*count)++;
    } while (accept(p, ","));
    return true;
}

/* op, or rank.op. Whether the op is there can be told the second time through. */
static bool wait_for(parser *p, tp_wait *out)
{
    const char *begin = p->at;
    out->rank = p->rank;
    if (!number(p, "op", 0, MAX_OPS, &out->op))
        return false;
    if (accept(p, ".")) {
        out->rank = out->op;
        if (!number(p, "op", 0, MAX_OPS, &out->op))
            return false;
    }
    bool other = out->rank >= p->plan->ranks;
    if (!other && (!p->fill || out->op < p->plan->rank[out->rank].count))
        return true;
    p->at = begin;
    skip_blanks(p);
    if (other)
        return wrong(p, "a wait for an op of rank %d: there are %d ranks", out->rank, p->plan->ranks);
    return wrong(p, "a wait for op %d of rank %d, which has %d ops", out->op, out->rank,
                 p->plan->rank[out->rank].count);
}

static bool waits(parser *p)
{
    p->op.wait = p->block.wait;
    do {
        tp_wait next;
        if (!wait_for(p, &next))
            return false;
        if (p->fill)
            *p->block.wait++ = next;
        p->size.waits++;
        p->op.waits++;
    } while (accept(p, ","));
    return true;
}

static bool lane(parser *p)
{
    for (int lane = 0; lane < TP_LANES; lane++)
        if (accept_word(p, tp_lane_name((tp_lane)lane))) {
            p->op.lane = (tp_lane)lane;
            return true;
        }
    return expected(p, "a lane's name");
}

static bool kind(parser *p)
{
    skip_blanks(p);
    for (int k = 0; k < TP_OP_KINDS; k++)
        if (*p->at == tpi_op_letter((tp_op_kind)k)) {
            p->op.kind = (tp_op_kind)k;
            p->at++;
            return true;
        }
    return expected(p, "an op's letter");
}

static bool op(parser *p)
{
    p->op = (tp_plan_op){.peer = -1};
    if (!kind(p) || (is_digit(*p->at) && !number(p, "part", 0, INT32_MAX, &p->op.part)))
        return false;
    skip_blanks(p);
    if (is_digit(*p->at) && !pieces(p, pieces_of_plan(p), &p->op.piece, &p->op.pieces, &p->op.step))
        return false;
    for (int c = TP_COLLECTIVE_ALL_GATHER; c <= TP_COLLECTIVE_ALL_REDUCE; c++)
        if (accept_word(p, tpi_collective_name((tp_collective)c)))
            p->op.collective = (tp_collective)c;
    if (accept(p, "~") && !number(p, "peer", 0, p->plan->ranks - 1, &p->op.peer))
        return false;
    if (accept(p, "@") && !lane(p))
        return false;
    if (accept_word(p, "after") && !waits(p))
        return false;
    if (accept_word(p, "reads") && !regions(p, &p->op.read, &p->op.reads))
        return false;
    return !accept_word(p, "writes") || regions(p, &p->op.write, &p->op.writes);
}

/* "rank: op; op" and the line's end. */
static bool line(parser *p)
{
    int rank = 0;
    if (!number(p, "rank", p->rank, p->rank, &rank) || !require(p, ":"))
        return false;
    tp_plan_rank *list = &p->plan->rank[p->rank];
    if (p->fill)
        list->op = p->block.op;
    int count = 0;
    skip_blanks(p);
    if (newline(p) == 0 && *p->at != '\0')
        do {
            if (p->size.ops == MAX_OPS)
                return expected(p, "at most %d ops", MAX_OPS);
            if (!op(p))
                return false;
            if (p->fill)
                *p->block.op++ = p->op;
            p->size.ops++;
            count++;
        } while (accept(p, ";"));
    list->count = count; /* the second time through it is the same: waits are checked against it */
    skip_blanks(p);
    return newline(p) > 0 || *p->at == '\0' || expected(p, "\";\" or the line's end");
}

static bool name(parser *p, const char *what, int (*from_name)(const char *), int limit, int *out)
{
    char word[32];
    size_t length = peek_word(p, word);
    *out = from_name(word);
    if (*out < 0 || *out >= limit)
        return expected(p, "%s", what);
    p->at += length;
    return true;
}

static bool header(parser *p)
{
    tp_plan *plan = p->plan;
    return require(p, "plan ") && name(p, "an algorithm", tp_overlap_from_name, TP_OVERLAP_AUTO, &plan->algorithm) &&
           name(p, "a pattern", tp_pattern_from_name, TP_PATTERN_COUNT, &plan->pattern) && require(p, "ranks ") &&
           number(p, "ranks", 1, TP_PLAN_MAX_RANKS, &plan->ranks) && require(p, "chunks ") &&
           number(p, "chunks", 1, TP_PLAN_MAX_CHUNKS, &plan->chunks);
}

static bool end_line(parser *p)
{
    if (newline(p) == 0)
        return expected(p, "the line's end");
    p->at += newline(p);
    p->line_start = p->at;
    p->line++;
    return true;
}

static bool whole(parser *p, const char *text)
{
    p->at = p->line_start = text;
    p->line = 1;
    p->size = (tpi_plan_size){0, 0, 0};
    if (!header(p))
        return false;
    for (p->rank = 0; p->rank < p->plan->ranks; p->rank++)
        if (!end_line(p) || !line(p))
            return false;
    while (newline(p) > 0 && end_line(p))
        ;
    return *p->at == '\0' || expected(p, "the end");
}

tp_status tp_plan_parse(const char *text, tp_plan **out)
{
    if (text == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_plan_parse: %s is NULL", text == NULL ? "text" : "out");
    *out = NULL;
    parser p = {.plan = calloc(1, sizeof *p.plan)};
    if (p.plan == NULL)
        return tpi_message(TP_ERR_MEMORY, "plan text: out of memory");
    tp_status status = whole(&p, text) ? TP_OK : TP_ERR_FORMAT;
    tp_plan *plan = NULL;
    if (status == TP_OK)
        status = tpi_plan_allocate(&p.size, &plan, &p.block);
    if (status == TP_OK) {
        void *memory = plan->memory;
        *plan = *p.plan;
        plan->memory = memory;
        free(p.plan);
        p.plan = plan;
        p.fill = true;
        status = whole(&p, text) ? TP_OK : TP_ERR_FORMAT;
    }
    if (status == TP_OK)
        *out = p.plan;
    else
        tp_plan_destroy(p.plan);
    return status;
}
