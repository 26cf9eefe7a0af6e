#include "plan/render.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tpi_put_tenth(tpi_writer *page, double value)
{
    long long tenths = llround(value * 10), whole = llabs(tenths) / 10, rest = llabs(tenths) % 10;
    tpi_put(page, "%s%lld", tenths < 0 ? "-" : "", whole);
    if (rest != 0)
        tpi_put(page, ".%lld", rest);
}

/* A number of 0 to 1000 with three digits. */
static void three_digits(char text[TPI_LABEL], double value, const char *unit)
{
    int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    long long scale = digits == 2 ? 100 : digits == 1 ? 10 : 1, scaled = llround(value * (double)scale);
    if (digits == 0)
        snprintf(text, TPI_LABEL, "%lld %s", scaled, unit);
    else
        snprintf(text, TPI_LABEL, "%lld.%0*lld %s", scaled / scale, digits, scaled % scale, unit);
}

void tpi_label_seconds(char text[TPI_LABEL], double seconds)
{
    static const struct {
        double size;
        const char *name;
    } units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "\302\265s"}, {1e-9, "ns"}};
    int unit = 0;
    if (seconds < 5e-13) {
        snprintf(text, TPI_LABEL, "0 s");
        return;
    }
    while (unit < 3 && seconds < 0.9995 * units[unit].size)
        unit++;
    three_digits(text, fmin(seconds / units[unit].size, 1e12), units[unit].name);
}

void tpi_label_round(char text[TPI_LABEL], double seconds)
{
    tpi_label_seconds(text, seconds);
    char *space = strchr(text, ' '), *end = space;
    if (strchr(text, '.') != NULL) {
        while (end[-1] == '0')
            end--;
        end -= end[-1] == '.';
    }
    if (seconds < 5e-13)
        end[0] = '\0';
    else
        memmove(end, space, strlen(space) + 1);
}

void tpi_label_hidden(char text[TPI_LABEL], double hidden, double comm_seconds, double seconds)
{
    long long tenths = llround(fmax(fmin(hidden, 1e6), -1e6) * 1000);
    if (comm_seconds < 1e-6 || comm_seconds < 0.01 * seconds)
        snprintf(text, TPI_LABEL, "-");
    else if (tenths < 0)
        snprintf(text, TPI_LABEL, "none");
    else
        snprintf(text, TPI_LABEL, "%lld.%lld %%", tenths / 10, tenths % 10);
}

void tpi_label_pieces(char text[TPI_LABEL], const tp_plan *plan, const tp_plan_op *op)
{
    int chunks = plan->chunks, all = plan->ranks * chunks, owner = op->piece / chunks, chunk = op->piece % chunks;
    if (op->pieces == 0)
        text[0] = '\0';
    else if (op->pieces == all && op->piece == 0)
        snprintf(text, TPI_LABEL, "all");
    else if (op->pieces == chunks && chunk == 0 && (op->step == 1 || chunks == 1))
        snprintf(text, TPI_LABEL, "r%d", owner);
    else if (op->pieces == 1)
        snprintf(text, TPI_LABEL, "r%d.%d", owner, chunk);
    else if (op->pieces == plan->ranks && op->step == chunks)
        snprintf(text, TPI_LABEL, "c%d", chunk);
    else
        snprintf(text, TPI_LABEL, "%d-%d", op->piece, op->piece + (op->pieces - 1) * op->step);
}

/* Messages between two ranks meet in the order of both lists. */
int tpi_message_partner(const tp_plan *plan, int rank, int index)
{
    const tp_plan_op *op = &plan->rank[rank].op[index];
    tp_op_kind other = op->kind == TP_OP_SEND ? TP_OP_RECV : TP_OP_SEND;
    int before = 0;
    for (int i = 0; i < index; i++)
        before += plan->rank[rank].op[i].kind == op->kind && plan->rank[rank].op[i].peer == op->peer;
    const tp_plan_rank *peer = &plan->rank[op->peer];
    for (int i = 0; i < peer->count; i++)
        if (peer->op[i].kind == other && peer->op[i].peer == rank && before-- == 0)
            return i;
    return -1;
}
