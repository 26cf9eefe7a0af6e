/* The table of overlap algorithms. */
#include <tp/overlap.h>

#include <string.h>

#include "core/context.h"
#include "plan/fold.h"
#include "plan/overlap/algorithms.h"

typedef struct tpi_overlap_entry {
    const char *name;
    void (*generate)(tpi_builder *builder);
    int default_chunks;
} tpi_overlap_entry;

static const tpi_overlap_entry algorithms[TP_OVERLAP_COUNT] = {
    [TP_OVERLAP_NONE] = {"none", tpi_generate_none, 1},
    [TP_OVERLAP_BULK] = {"bulk", tpi_generate_bulk, 1},
    [TP_OVERLAP_RING] = {"ring", tpi_generate_ring, 4},
    [TP_OVERLAP_PIPELINE] = {"pipeline", tpi_generate_pipeline, 4},
    [TP_OVERLAP_PULL] = {"pull", tpi_generate_pull, 4},
    [TP_OVERLAP_DIRECT] = {"direct", tpi_generate_direct, 1},
    [TP_OVERLAP_AUTO] = {"auto", NULL, 0},
};

static const char *const patterns[TP_PATTERN_COUNT] = {
#define PATTERN_WORD(name, word) [name] = word,
    TP_PATTERN_LIST(PATTERN_WORD)
#undef PATTERN_WORD
};

const char *tp_overlap_name(tp_overlap algorithm)
{
    return (int)algorithm >= 0 && algorithm < TP_OVERLAP_COUNT ? algorithms[algorithm].name : "?";
}

const char *tp_pattern_name(tp_pattern pattern)
{
    return (int)pattern >= 0 && pattern < TP_PATTERN_COUNT ? patterns[pattern] : "?";
}

int tp_overlap_from_name(const char *name)
{
    for (int i = 0; i < TP_OVERLAP_COUNT && name != NULL; i++)
        if (strcmp(name, algorithms[i].name) == 0)
            return i;
    return -1;
}

int tp_pattern_from_name(const char *name)
{
    for (int i = 0; i < TP_PATTERN_COUNT && name != NULL; i++)
        if (strcmp(name, patterns[i]) == 0)
            return i;
    return -1;
}

static tp_status check_desc(const tp_plan_desc *desc)
{
    if ((int)desc->algorithm < 0 || desc->algorithm >= TP_OVERLAP_COUNT || algorithms[desc->algorithm].generate == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "plan: algorithm %d is not one of 0 to %d", (int)desc->algorithm,
                           TP_OVERLAP_AUTO - 1);
    if ((int)desc->pattern < 0 || desc->pattern >= TP_PATTERN_COUNT)
        return tpi_message(TP_ERR_ARGUMENT, "plan: pattern %d is not one of 0 to %d", (int)desc->pattern,
                           TP_PATTERN_COUNT - 1);
    if (desc->ranks < 1 || desc->ranks > TP_PLAN_MAX_RANKS)
        return tpi_message(TP_ERR_ARGUMENT, "plan: ranks %d, must be 1 to %d", desc->ranks, TP_PLAN_MAX_RANKS);
    if (desc->chunks < 0 || desc->chunks > TP_PLAN_MAX_CHUNKS)
        return tpi_message(TP_ERR_ARGUMENT, "plan: chunks %d, must be 0 to %d", desc->chunks, TP_PLAN_MAX_CHUNKS);
    return TP_OK;
}

tp_status tp_plan_create(const tp_plan_desc *desc, tp_plan **out)
{
    if (desc == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_plan_create: %s is NULL", desc == NULL ? "desc" : "out");
    *out = NULL;
    TPI_TRY(check_desc(desc));
    tp_plan_desc resolved = *desc;
    if (resolved.chunks == 0)
        resolved.chunks = algorithms[desc->algorithm].default_chunks;
    tpi_builder *builder;
    TPI_TRY(tpi_builder_create(&resolved, &builder));
    algorithms[desc->algorithm].generate(builder);
    tp_status status = tpi_builder_finish(builder, out);
    tpi_builder_destroy(builder);
    if (status == TP_OK && desc->one_lane)
        status = tpi_plan_fold(*out);
    if (status != TP_OK) {
        tp_plan_destroy(*out);
        *out = NULL;
    }
    return status;
}
