#include "plan/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char op_letters[TP_OP_KINDS] = {
#define OP_LETTER(name, letter, word) [name] = letter,
    TP_OP_LIST(OP_LETTER)
#undef OP_LETTER
};

static const char *const collective_names[] = {[TP_COLLECTIVE_NONE] = "no-collective",
                                               [TP_COLLECTIVE_ALL_GATHER] = "all-gather",
                                               [TP_COLLECTIVE_REDUCE_SCATTER] = "reduce-scatter",
                                               [TP_COLLECTIVE_ALL_REDUCE] = "all-reduce"};

char tpi_op_letter(tp_op_kind kind)
{
    return (int)kind >= 0 && kind < TP_OP_KINDS ? op_letters[kind] : '?';
}

const char *tpi_collective_name(tp_collective collective)
{
    return (int)collective >= 0 && collective <= TP_COLLECTIVE_ALL_REDUCE ? collective_names[collective] : "?";
}

void tpi_put(tpi_writer *writer, const char *format, ...)
{
    size_t room = writer->length < writer->bytes ? writer->bytes - writer->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(room > 0 ? writer->text + writer->length : NULL, room, format, arguments);
    va_end(arguments);
    writer->length += length > 0 ? (size_t)length : 0;
}

size_t tpi_put_end(tpi_writer *writer)
{
    if (writer->bytes > 0)
        writer->text[writer->length < writer->bytes ? writer->length : writer->bytes - 1] = '\0';
    return writer->length;
}

static void put_pieces(tpi_writer *writer, int piece, int pieces, int step)
{
    tpi_put(writer, "%d", piece);
    if (pieces != 1 || step != 1)
        tpi_put(writer, "x%d", pieces);
    if (step != 1)
        tpi_put(writer, "/%d", step);
}

static void put_region(tpi_writer *writer, int rank, const tp_region *region)
{
    if (region->rank != rank)
        tpi_put(writer, "%d:", region->rank);
    tpi_put(writer, "%s", tp_buffer_name(region->buffer));
    if (region->slot != 0)
        tpi_put(writer, "#%d", region->slot);
    tpi_put(writer, "[");
    put_pieces(writer, region->piece, region->pieces, region->step);
    tpi_put(writer, "]");
}

static void put_regions(tpi_writer *writer, int rank, const char *word, const tp_region *region, int count)
{
    for (int i = 0; i < count; i++) {
        tpi_put(writer, i == 0 ? " %s " : ", ", word);
        put_region(writer, rank, &region[i]);
    }
}

static void put_waits(tpi_writer *writer, int rank, const tp_plan_op *op)
{
    for (int i = 0; i < op->waits; i++) {
        tpi_put(writer, "%s", i == 0 ? " after " : ", ");
        if (op->wait[i].rank != rank)
            tpi_put(writer, "%d.", op->wait[i].rank);
        tpi_put(writer, "%d", op->wait[i].op);
    }
}

void tpi_put_op(tpi_writer *writer, int rank, const tp_plan_op *op)
{
    tpi_put(writer, "%c", tpi_op_letter(op->kind));
    if (op->part != 0 || op->kind == TP_OP_GEMM || op->kind == TP_OP_COMPUTE)
        tpi_put(writer, "%d", op->part);
    if (op->piece != 0 || op->pieces != 0 || op->step != 0) {
        tpi_put(writer, " ");
        put_pieces(writer, op->piece, op->pieces, op->step);
    }
    if (op->collective != TP_COLLECTIVE_NONE)
        tpi_put(writer, " %s", tpi_collective_name(op->collective));
    if (op->peer != -1)
        tpi_put(writer, " ~%d", op->peer);
    if (op->lane != TP_LANE_COMPUTE)
        tpi_put(writer, " @%s", tp_lane_name(op->lane));
    put_waits(writer, rank, op);
    put_regions(writer, rank, "reads", op->read, op->reads);
    put_regions(writer, rank, "writes", op->write, op->writes);
}

size_t tp_plan_print(const tp_plan *plan, char *text, size_t bytes)
{
    tpi_writer writer = {text, text != NULL ? bytes : 0, 0};
    if (plan == NULL)
        return tpi_put_end(&writer);
    tpi_put(&writer, "plan %s %s ranks %d chunks %d\n", tp_overlap_name((tp_overlap)plan->algorithm),
            tp_pattern_name((tp_pattern)plan->pattern), plan->ranks, plan->chunks);
    for (int rank = 0; rank < plan->ranks; rank++) {
        tpi_put(&writer, "%d:", rank);
        for (int i = 0; i < plan->rank[rank].count; i++) {
            tpi_put(&writer, i == 0 ? " " : "; ");
            tpi_put_op(&writer, rank, &plan->rank[rank].op[i]);
        }
        tpi_put(&writer, "\n");
    }
    return tpi_put_end(&writer);
}
