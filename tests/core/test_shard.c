/* Shards: cover, order, balance and nesting, exhaustively for small sizes, exactly for huge ones. */
#include <criterion/criterion.h>
#include <tp/shard.h>

static void check_cover(int64_t total, int64_t parts)
{
    int64_t next = 0;
    for (int64_t index = 0; index < parts; index++) {
        tp_range range = tp_shard_range(total, parts, index);
        cr_assert_eq(range.begin, next, "total %lld parts %lld index %lld", (long long)total, (long long)parts,
                     (long long)index);
        int64_t size = range.end - range.begin;
        cr_assert(size == total / parts || size == total / parts + 1);
        next = range.end;
    }
    cr_assert_eq(next, total);
}

Test(shard, ranges_cover_and_are_balanced)
{
    for (int64_t total = 0; total <= 70; total++) {
        for (int64_t parts = 1; parts <= 17; parts++)
            check_cover(total, parts);
    }
    check_cover(50257, 8);
    check_cover(INT64_MAX, 7);
    check_cover(INT64_MAX - 1, 8);
    check_cover(INT64_MAX, 1024);
}

Test(shard, ranges_are_the_floors)
{
    for (int64_t total = 0; total <= 200; total++) {
        for (int64_t parts = 1; parts <= 16; parts++) {
            for (int64_t index = 0; index < parts; index++)
                cr_assert_eq(tp_shard_range(total, parts, index).begin, total * index / parts);
        }
    }
    /* floor((2^63 - 1) * 5 / 8) = 5 * 2^60 - 1, since 5/8 is less than 1 */
    cr_assert_eq(tp_shard_range(INT64_MAX, 8, 5).begin, ((int64_t)5 << 60) - 1);
    cr_assert_eq(tp_shard_range(INT64_MAX, 8, 7).end, INT64_MAX);
}

Test(shard, ranges_nest)
{
    for (int64_t total = 0; total <= 100; total++) {
        for (int64_t parts = 1; parts <= 8; parts++) {
            for (int64_t index = 0; index < parts; index++) {
                tp_range whole = tp_shard_range(total, parts, index);
                cr_assert_eq(whole.begin, tp_shard_range(total, 2 * parts, 2 * index).begin);
                cr_assert_eq(whole.end, tp_shard_range(total, 2 * parts, 2 * index + 1).end);
            }
        }
    }
}

/* Heads by brute force: which unit each reader reads, who reads it first. */
static void check_readers(int64_t units, int64_t sharing, int64_t unit_size, int64_t parts)
{
    tp_shard_part part = {.units = units, .unit_size = unit_size, .readers = units * sharing};
    int64_t owned_next = 0;
    for (int64_t index = 0; index < parts; index++) {
        tp_range readers = tp_shard_range(part.readers, parts, index);
        int64_t first = -1, last = -1, owned = 0, first_owned = -1;
        for (int64_t reader = readers.begin; reader < readers.end; reader++) {
            int64_t unit = reader / sharing;
            first = first < 0 ? unit : first;
            last = unit;
            if (reader % sharing == 0) {
                first_owned = first_owned < 0 ? unit : first_owned;
                owned++;
            }
        }
        tp_range held = tp_shard_part_held(&part, parts, index);
        cr_assert_eq(held.end - held.begin, first < 0 ? 0 : (last - first + 1) * unit_size);
        if (first >= 0)
            cr_assert_eq(held.begin, first * unit_size);
        tp_range own = tp_shard_part_owned(&part, parts, index);
        cr_assert_eq(own.end - own.begin, owned * unit_size);
        if (owned > 0) {
            cr_assert_eq(own.begin, first_owned * unit_size);
            cr_assert(own.begin >= held.begin && own.end <= held.end, "what is owned is held");
        }
        cr_assert_eq(own.begin, owned_next);
        owned_next = own.end;
    }
    cr_assert_eq(owned_next, units * unit_size, "owned ranges cover the part");
}

Test(shard, readers_hold_and_own)
{
    for (int64_t units = 0; units <= 9; units++) {
        for (int64_t sharing = 1; sharing <= 6; sharing++) {
            for (int64_t parts = 1; parts <= 16; parts++)
                check_readers(units, sharing, 3, parts);
        }
    }
}

Test(shard, two_kv_heads_on_four_ranks)
{
    tp_shard_part part = {.units = 2, .unit_size = 64, .readers = 8};
    static const tp_range held[4] = {{0, 64}, {0, 64}, {64, 128}, {64, 128}};
    static const int64_t owned[4] = {64, 0, 64, 0};
    for (int64_t index = 0; index < 4; index++) {
        tp_range range = tp_shard_part_held(&part, 4, index);
        cr_assert(range.begin == held[index].begin && range.end == held[index].end);
        tp_range own = tp_shard_part_owned(&part, 4, index);
        cr_assert_eq(own.end - own.begin, owned[index]);
    }
}

Test(shard, parts_without_readers_are_ranges)
{
    tp_shard_part part = {.units = 12, .unit_size = 5};
    for (int64_t index = 0; index < 8; index++) {
        tp_range units = tp_shard_range(12, 8, index);
        tp_range held = tp_shard_part_held(&part, 8, index), owned = tp_shard_part_owned(&part, 8, index);
        cr_assert(held.begin == 5 * units.begin && held.end == 5 * units.end);
        cr_assert(owned.begin == held.begin && owned.end == held.end);
    }
}

Test(shard, virtual_ranks)
{
    for (int64_t parts = 1; parts <= 64; parts++) {
        int64_t next = 0, count = 0;
        for (int64_t index = 0; index < parts; index++) {
            tp_range range = tp_shard_virtual(parts, index, &count);
            cr_assert_eq(range.begin, next);
            next = range.end;
        }
        cr_assert_eq(count, 8 % parts == 0 ? 8 : parts);
        cr_assert_eq(next, count);
    }
}
