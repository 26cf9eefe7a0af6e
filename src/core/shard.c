/* Global indices to ranks. */
#include <tp/shard.h>

/* floor(total * index / parts) without the product: total = quotient * parts + rest. */
static int64_t border(int64_t total, int64_t parts, int64_t index)
{
    return total / parts * index + total % parts * index / parts;
}

tp_range tp_shard_range(int64_t total, int64_t parts, int64_t index)
{
    return (tp_range){border(total, parts, index), border(total, parts, index + 1)};
}

static tp_range scaled(int64_t begin, int64_t end, int64_t unit_size)
{
    return (tp_range){begin * unit_size, end * unit_size};
}

/* Readers that share one unit. */
static int64_t readers_of_unit(const tp_shard_part *part)
{
    return part->units > 0 && part->readers >= part->units ? part->readers / part->units : 1;
}

tp_range tp_shard_part_held(const tp_shard_part *part, int64_t parts, int64_t index)
{
    if (part->readers <= 0) {
        tp_range units = tp_shard_range(part->units, parts, index);
        return scaled(units.begin, units.end, part->unit_size);
    }
    int64_t sharing = readers_of_unit(part);
    tp_range readers = tp_shard_range(part->readers, parts, index);
    int64_t begin = readers.begin / sharing;
    int64_t end = readers.begin == readers.end ? begin : (readers.end - 1) / sharing + 1;
    return scaled(begin, end, part->unit_size);
}

static int64_t divided_up(int64_t value, int64_t divisor)
{
    return value / divisor + (value % divisor != 0);
}

tp_range tp_shard_part_owned(const tp_shard_part *part, int64_t parts, int64_t index)
{
    if (part->readers <= 0)
        return tp_shard_part_held(part, parts, index);
    /* A unit belongs to the rank of its first reader. */
    int64_t sharing = readers_of_unit(part);
    tp_range readers = tp_shard_range(part->readers, parts, index);
    return scaled(divided_up(readers.begin, sharing), divided_up(readers.end, sharing), part->unit_size);
}

tp_range tp_shard_virtual(int64_t parts, int64_t index, int64_t *count)
{
    bool divides = TP_VIRTUAL_RANKS % parts == 0;
    *count = divides ? TP_VIRTUAL_RANKS : parts;
    return tp_shard_range(*count, parts, index);
}
