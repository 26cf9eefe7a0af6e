#include "plan/memory.h"

#include <stdlib.h>

#include "core/context.h"

tp_status tpi_plan_allocate(const tpi_plan_size *size, tp_plan **out, tpi_plan_block *block)
{
    tp_plan *plan = calloc(1, sizeof *plan);
    size_t bytes = size->ops * sizeof(tp_plan_op) + size->waits * sizeof(tp_wait) + size->regions * sizeof(tp_region);
    char *memory = plan ? calloc(1, bytes + 1) : NULL;
    if (memory == NULL) {
        free(plan);
        return tpi_message(TP_ERR_MEMORY, "plan: out of memory for %zu ops", size->ops);
    }
    plan->memory = memory;
    block->op = (tp_plan_op *)(void *)memory;
    block->wait = (tp_wait *)(void *)(block->op + size->ops);
    block->region = (tp_region *)(void *)(block->wait + size->waits);
    *out = plan;
    return TP_OK;
}

void tp_plan_destroy(tp_plan *plan)
{
    if (plan == NULL)
        return;
    free(plan->memory);
    free(plan);
}
