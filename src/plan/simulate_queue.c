/* Ops that can begin, in the order of their beginnings; at one time in the order of ranks and lanes. */
#include "plan/simulation.h"

static bool earlier(const tpi_simulation *s, int a, int b)
{
    double left = s->ready[a].when, right = s->ready[b].when;
    return left < right || (left <= right && a < b);
}

void tpi_simulation_push(tpi_simulation *s, int rank, int lane, const tpi_candidate *c)
{
    int slot = rank * TP_LANES + lane, at = s->queued++;
    s->ready[slot] = *c;
    for (; at > 0 && earlier(s, slot, s->queue[(at - 1) / 2]); at = (at - 1) / 2)
        s->queue[at] = s->queue[(at - 1) / 2];
    s->queue[at] = slot;
}

bool tpi_simulation_pop(tpi_simulation *s, tpi_candidate *c)
{
    if (s->queued == 0)
        return false;
    *c = s->ready[s->queue[0]];
    int moved = s->queue[--s->queued], at = 0;
    for (int child = 1; child < s->queued; child = 2 * at + 1) {
        if (child + 1 < s->queued && earlier(s, s->queue[child + 1], s->queue[child]))
            child++;
        if (!earlier(s, s->queue[child], moved))
            break;
        s->queue[at] = s->queue[child];
        at = child;
    }
    s->queue[at] = moved;
    return true;
}
