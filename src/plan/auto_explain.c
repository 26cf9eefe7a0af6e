#include <tp/auto.h>

#include <math.h>
#include <string.h>

#include "plan/render.h"

/* Right-aligned, with a blank before it whatever its length; the micro sign has two bytes. */
static void cell(tpi_writer *page, int width, const char *text)
{
    tpi_put(page, " %*s", width - 1 + (strchr(text, '\302') != NULL), text);
}

static void line(tpi_writer *page, const tp_overlap_choice *choice, const tp_overlap_candidate *candidate)
{
    bool chosen = candidate->algorithm == choice->algorithm && candidate->chunks == choice->chunks;
    char seconds[TPI_LABEL], comm[TPI_LABEL], exposed[TPI_LABEL], hidden[TPI_LABEL];
    tpi_label_seconds(seconds, candidate->seconds);
    tpi_label_seconds(comm, candidate->comm_seconds);
    /* the rest are fixed costs of the plan's ops */
    tpi_label_seconds(exposed, fmin(candidate->exposed_seconds, candidate->comm_seconds));
    tpi_label_hidden(hidden, candidate->hidden, candidate->comm_seconds, candidate->seconds);
    tpi_put(page, "%c %-9s %6d", chosen ? '*' : ' ', tp_overlap_name(candidate->algorithm), candidate->chunks);
    cell(page, 12, seconds);
    cell(page, 15, comm);
    cell(page, 11, exposed);
    cell(page, 10, hidden);
    tpi_put(page, "\n");
}

size_t tp_overlap_explain(const tp_overlap_shape *shape, const tp_overlap_choice *choice, char *text, size_t bytes)
{
    tpi_writer page = {.text = text, .bytes = text != NULL ? bytes : 0};
    if (shape == NULL || choice == NULL)
        return tpi_put_end(&page);
    tpi_put(&page, "%s, %s, %d ranks, %lld rows, gemm 0: %lld x %lld", tp_pattern_name(shape->pattern),
            tp_dtype_name(shape->dtype), shape->ranks, (long long)shape->rows, (long long)shape->cols[0],
            (long long)shape->inner[0]);
    if (shape->cols[1] > 0)
        tpi_put(&page, ", gemm 1: %lld x %lld", (long long)shape->cols[1], (long long)shape->inner[1]);
    tpi_put(&page, "\n  algorithm chunks   predicted  communication    exposed    hidden\n");
    for (int i = 0; i < choice->candidates; i++)
        line(&page, choice, &choice->candidate[i]);
    tpi_put(&page, "%s: %s\n", tp_overlap_name(choice->algorithm), choice->reason);
    return tpi_put_end(&page);
}
