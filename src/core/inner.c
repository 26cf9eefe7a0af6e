#include "core/inner.h"

int64_t tpi_parts_local(const tp_shard_part *part, int parts, int ranks, int index)
{
    int64_t length = 0;
    for (int p = 0; p < parts; p++) {
        tp_range held = tp_shard_part_held(&part[p], ranks, index);
        length += held.end - held.begin;
    }
    return length;
}

int64_t tpi_parts_global(const tp_shard_part *part, int parts)
{
    int64_t length = 0;
    for (int p = 0; p < parts; p++) {
        int64_t features;
        if (__builtin_mul_overflow(part[p].units, part[p].unit_size, &features) ||
            __builtin_add_overflow(length, features, &length))
            return INT64_MAX;
    }
    return length;
}

static void add_segment(tpi_inner *inner, int block, int64_t begin, int64_t length)
{
    if (length <= 0)
        return;
    inner->segment[inner->segments].block = block;
    inner->segment[inner->segments].begin = begin;
    inner->segment[inner->segments].length = length;
    inner->segments++;
}

void tpi_inner_from_parts(const tp_shard_part *part, int parts, int ranks, int index, tpi_inner *out)
{
    int64_t count;
    tp_range mine = tp_shard_virtual(ranks, index, &count);
    *out = (tpi_inner){.blocks = (int)(mine.end - mine.begin)};
    for (int64_t v = mine.begin; v < mine.end; v++) {
        int64_t local = 0; /* where the part begins in this rank's shard */
        for (int p = 0; p < parts; p++) {
            tp_range held = tp_shard_part_held(&part[p], ranks, index);
            tp_range owned = tp_shard_part_owned(&part[p], count, v);
            add_segment(out, (int)(v - mine.begin), local + owned.begin - held.begin, owned.end - owned.begin);
            local += held.end - held.begin;
        }
    }
}

void tpi_inner_from_share(int64_t length, int ranks, int index, bool local, tpi_inner *out)
{
    int64_t count;
    tp_range mine = tp_shard_virtual(ranks, index, &count);
    int64_t base = local ? tp_shard_range(length, count, mine.begin).begin : 0;
    *out = (tpi_inner){.blocks = (int)(mine.end - mine.begin)};
    for (int64_t v = mine.begin; v < mine.end; v++) {
        tp_range range = tp_shard_range(length, count, v);
        add_segment(out, (int)(v - mine.begin), range.begin - base, range.end - range.begin);
    }
}
