/* Philox against the known answers of Random123, and the numbers made from it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <tp/random.h>

typedef struct known_answer {
    uint32_t counter[4], key[2], out[4];
} known_answer;

static const known_answer known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

Test(random, known_answers)
{
    for (size_t i = 0; i < sizeof known_answers / sizeof *known_answers; i++) {
        uint32_t out[4];
        tp_philox4x32(known_answers[i].counter, known_answers[i].key, out);
        cr_assert_eq(memcmp(out, known_answers[i].out, sizeof out), 0, "vector %zu", i);
    }
}

Test(random, words_are_at_the_documented_place)
{
    tp_random_key key = {0x299f31d0a4093822u, 0x0370734413198a2eu};
    uint64_t block = 0x85a308d3243f6a88u % ((uint64_t)1 << 62);
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0x13198a2e, 0x03707344};
    uint32_t seed[2] = {0xa4093822, 0x299f31d0}, out[4];
    tp_philox4x32(counter, seed, out);
    for (uint64_t word = 0; word < 4; word++)
        cr_assert_eq(tp_random_u32(key, 4 * block + word), out[word]);
}

Test(random, uniform_numbers)
{
    tp_random_key key = {7, tp_random_stream_name("uniform")};
    double sum = 0, squares = 0;
    int64_t count = 100000;
    for (int64_t i = 0; i < count; i++) {
        float value = tp_random_uniform(key, (uint64_t)i);
        cr_assert(value >= 0 && value < 1);
        cr_assert_eq(value * 0x1p24f, floorf(value * 0x1p24f));
        sum += (double)value;
        squares += (double)value * (double)value;
    }
    /* Six standard deviations of the means: sqrt(1/12/n) and sqrt(4/45/n). */
    cr_assert_float_eq(sum / (double)count, 0.5, 6 * sqrt(1.0 / 12 / (double)count));
    cr_assert_float_eq(squares / (double)count, 1.0 / 3, 6 * sqrt(4.0 / 45 / (double)count));
}

Test(random, normal_numbers)
{
    tp_random_key key = {7, tp_random_stream_name("normal")};
    double moments[5] = {0};
    int64_t count = 100000;
    for (int64_t i = 0; i < count; i++) {
        double value = (double)tp_random_normal(key, (uint64_t)i);
        for (int power = 1; power <= 4; power++)
            moments[power] += pow(value, power) / (double)count;
    }
    double root = sqrt((double)count);
    cr_assert_float_eq(moments[1], 0, 6 / root);
    cr_assert_float_eq(moments[2], 1, 6 * sqrt(2) / root);
    cr_assert_float_eq(moments[3], 0, 6 * sqrt(15) / root);
    cr_assert_float_eq(moments[4], 3, 6 * sqrt(96) / root);
}

Test(random, normal_is_box_muller)
{
    tp_random_key key = {123, 456};
    double two_pi = 2 * acos(-1.0);
    for (uint64_t pair = 0; pair < 1000; pair++) {
        double first = ((double)tp_random_u32(key, 2 * pair) + 1) * 0x1p-32;
        double second = (double)tp_random_u32(key, 2 * pair + 1) * 0x1p-32;
        double radius = sqrt(-2 * log(first));
        cr_assert_float_eq(tp_random_normal(key, 2 * pair), radius * cos(two_pi * second), 1e-6);
        cr_assert_float_eq(tp_random_normal(key, 2 * pair + 1), radius * sin(two_pi * second), 1e-6);
    }
}

Test(random, streams_and_seeds_differ)
{
    cr_assert_eq(tp_random_stream_name(""), 0xcbf29ce484222325u);
    cr_assert_eq(tp_random_stream_name(NULL), 0xcbf29ce484222325u);
    cr_assert_eq(tp_random_stream_name("a"), 0xaf63dc4c8601ec8cu);
    cr_assert_neq(tp_random_stream_step(1, 0), tp_random_stream_step(0, 1));
    cr_assert_neq(tp_random_stream_step(1 << 8, 3), tp_random_stream_step(2 << 8, 3));
    int equal = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        equal += tp_random_u32((tp_random_key){1, 0}, i) == tp_random_u32((tp_random_key){2, 0}, i);
        equal += tp_random_u32((tp_random_key){1, 0}, i) == tp_random_u32((tp_random_key){1, 1}, i);
    }
    cr_assert_leq(equal, 1);
}

Test(random, dropout_threshold)
{
    cr_assert_eq(tp_random_threshold(0), 0u);
    cr_assert_eq(tp_random_threshold(0.5f), 0x80000000u);
    cr_assert_eq(tp_random_threshold(0.25f), 0x40000000u);
    cr_assert_eq(tp_random_threshold(NAN), 0u);
    cr_assert_eq(tp_random_threshold(-1), 0u);
    cr_assert_eq(tp_random_threshold(nextafterf(1, 0)), 0xffffff00u);
    cr_assert_eq(tp_random_threshold(1), UINT32_MAX);
}
