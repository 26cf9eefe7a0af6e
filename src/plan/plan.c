#include <tp/plan.h>

#include <stdio.h>

static const char kind_letter[TP_OP_KINDS] = {
    [TP_OP_GEMM] = 'G', [TP_OP_COMPUTE] = 'K',        [TP_OP_COPY] = 'Y',           [TP_OP_PULL] = 'P',      [TP_OP_PUSH] = 'Q',
    [TP_OP_REDUCE] = '+', [TP_OP_SEND] = 'S',         [TP_OP_RECV] = 'R',           [TP_OP_COLLECTIVE] = 'C', [TP_OP_FORWARD] = 'F',
    [TP_OP_BACKWARD_INPUT] = 'B', [TP_OP_BACKWARD_WEIGHT] = 'W', [TP_OP_RECOMPUTE] = 'r', [TP_OP_OPTIMIZER] = 'O',
};

static const char *const lane_name[TP_LANES] = {[TP_LANE_COMPUTE] = "", [TP_LANE_COMM] = "@comm", [TP_LANE_COPY] = "@copy"};

typedef struct tpi_writer {
    char *text;
    size_t bytes, length;
} tpi_writer;

static void put(tpi_writer *writer, const char *piece)
{
    for (; *piece != '\0'; piece++, writer->length++)
        if (writer->length + 1 < writer->bytes)
            writer->text[writer->length] = *piece;
}

static void put_op(tpi_writer *writer, const tp_plan_op *op)
{
    char piece[48];
    snprintf(piece, sizeof piece, "%c%d.%d%s", kind_letter[op->kind], op->part, op->piece, lane_name[op->lane]);
    put(writer, piece);
    if (op->peer >= 0) {
        snprintf(piece, sizeof piece, "~%d", op->peer);
        put(writer, piece);
    }
    for (int w = 0; w < op->waits; w++) {
        snprintf(piece, sizeof piece, "%c%d", w == 0 ? '<' : ',', op->wait[w]);
        put(writer, piece);
    }
}

size_t tp_plan_print(const tp_plan *plan, char *text, size_t bytes)
{
    tpi_writer writer = {text, bytes, 0};
    for (int i = 0; i < plan->count; i++) {
        if (i > 0)
            put(&writer, " ");
        put_op(&writer, &plan->op[i]);
    }
    if (bytes > 0)
        text[writer.length < bytes ? writer.length : bytes - 1] = '\0';
    return writer.length;
}
