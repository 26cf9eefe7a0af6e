/* --explain: what AUTO chose in one rank's layers, and why: made again from the shapes that the layers asked for. */
#include "output.h"
#include "overlap.h"

#include "core/context.h"
#include "plan/execute_state.h"

#include <stdlib.h>
#include <string.h>

static tp_status print_choice(const tp_machine *machine, const tp_overlap_shape *shape, FILE *to)
{
    tp_overlap_choice choice;
    TPI_TRY(tp_overlap_choose(machine, shape, &choice));
    size_t length = tp_overlap_explain(shape, &choice, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL)
        return TP_ERR_MEMORY;
    tp_overlap_explain(shape, &choice, text, length + 1);
    fprintf(to, "%s\n", text);
    free(text);
    return TP_OK;
}

/* Choices are made for classes of row counts: that of so many rows. */
static int64_t class_of(const tp_overlap_table *table, int64_t rows)
{
    int i = 0;
    while (i + 1 < table->classes && rows > table->entry[i].rows)
        i++;
    return table->classes > 0 ? table->entry[i].rows : rows;
}

tp_status bench_overlap_explain(const bench_overlap_job *job, tp_ctx *ctx)
{
    const bench_options *options = &job->call->options;
    bool elsewhere = bench_output_taken(options) != NULL;
    tp_machine machine = job->call->costs;
    const struct tpi_executor *executor = ctx->executor;
    if (options->machine_file == NULL) {
        tp_machine_default_of((tp_device)options->device, &machine);
        if (job->link.bytes_per_second > 0) /* a modelled one */
            machine.link = job->link;
    }
    for (const tpi_auto *made = executor != NULL ? executor->autos : NULL; made != NULL; made = made->next) {
        tp_overlap_shape shape = made->shape;
        shape.rows = class_of(&made->table, job->shape.batch * job->shape.sequence);
        TPI_TRY(print_choice(&machine, &shape, elsewhere ? stderr : stdout));
    }
    return TP_OK;
}
