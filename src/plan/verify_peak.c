/* How many pieces of scratch memory can be alive at once on a rank. When most are alive, the last of them is just being
 * written: so the moments to look at are first writes. A piece counts unless, in every run, it is not there yet or not
 * needed any more then. */
#include "plan/price.h"
#include "plan/verify.h"

/* Whether everything that is done with a piece is done before `op` begins. */
static bool is_dead(const tpi_verifier *v, const tpi_cell *cell, int op)
{
    for (int r = cell->reader; r >= 0; r = v->reader[r].next)
        if (!tpi_verify_before(v, v->reader[r].op, op))
            return false;
    return cell->reader >= 0 || tpi_verify_before(v, cell->writer, op);
}

static bool is_scratch(int plane)
{
    return plane == TP_BUFFER_GATHERED || plane == TP_BUFFER_PARTIAL || plane == TP_BUFFER_INBOX ||
           plane == TP_BUFFER_GATHERED_SECOND || plane >= TP_BUFFERS; /* INBOX slots */
}

/* Lists the cells of a rank's scratch memory that the plan uses. */
static int list_used(const tpi_verifier *v, const tpi_cell *cells)
{
    int count = 0, planes = (int)v->cells / v->pieces;
    for (int plane = 0; plane < planes; plane++)
        for (int i = plane * v->pieces; is_scratch(plane) && i < (plane + 1) * v->pieces; i++)
            if (cells[i].first >= 0)
                v->used[count++] = i;
    return count;
}

static double bytes_of(const tpi_verifier *v, int cell)
{
    int plane = cell / v->pieces;
    const tp_region piece = {.buffer = plane < TP_BUFFERS ? (tp_buffer)plane : TP_BUFFER_INBOX, .pieces = 1};
    return v->costs != NULL ? tpi_price_bytes(v->plan, v->costs, &piece) : 0;
}

/* What is alive when `op` begins to write, of the cells that are used. */
static void look_at(tpi_verifier *v, const tpi_cell *cells, int count, int op)
{
    int alive = 0;
    double bytes = 0;
    for (int i = 0; i < count; i++) {
        const tpi_cell *cell = &cells[v->used[i]];
        if (tpi_verify_before(v, op, cell->first) || is_dead(v, cell, op))
            continue;
        alive++;
        bytes += bytes_of(v, v->used[i]);
    }
    v->proof->peak_pieces = alive > v->proof->peak_pieces ? alive : v->proof->peak_pieces;
    v->peak_bytes = bytes > v->peak_bytes ? bytes : v->peak_bytes;
}

void tpi_verify_peak(tpi_verifier *v)
{
    for (int rank = 0; rank < v->plan->ranks; rank++) {
        const tpi_cell *cells = &v->cell[(size_t)rank * v->cells];
        int count = list_used(v, cells), last = -1; /* an op writes many pieces in a row */
        for (int i = 0; i < count; i++) {
            int op = cells[v->used[i]].first;
            if (op != last)
                look_at(v, cells, count, op);
            last = op;
        }
    }
}
