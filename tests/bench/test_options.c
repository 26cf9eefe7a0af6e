/* The command line's pure part. */
#include <criterion/criterion.h>
#include <string.h>

#include "options.h"

static bench_options options;
static char message[BENCH_MESSAGE];

static bool read_line(unsigned command, int count, const char *const *words)
{
    char *argv[16];
    for (int i = 0; i < count; i++)
        argv[i] = (char *)words[i];
    message[0] = '\0';
    return bench_options_read(&options, command, "here", count, argv, message);
}

#define READ(command, ...)                                                            \
    read_line(command, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), \
              (const char *[]){__VA_ARGS__})

Test(options, edit_distance)
{
    cr_assert_eq(bench_edit_distance("", ""), 0);
    cr_assert_eq(bench_edit_distance("kitten", "sitting"), 3);
    cr_assert_eq(bench_edit_distance("abc", ""), 3);
    cr_assert_eq(bench_edit_distance("flaw", "lawn"), 2);
}

Test(options, nearest_word)
{
    static const char *const words[] = {"info", "gemm", "collective", "sweep", NULL};
    cr_assert_str_eq(bench_nearest("gem", words), "gemm");
    cr_assert_str_eq(bench_nearest("swep", words), "sweep");
    cr_assert_str_eq(bench_nearest("colective", words), "collective");
    cr_assert_null(bench_nearest("zzzzzz", words));
}

Test(options, bytes)
{
    int64_t bytes = 0;
    cr_assert(bench_parse_bytes("64", &bytes));
    cr_assert_eq(bytes, 64);
    cr_assert(bench_parse_bytes("4K", &bytes));
    cr_assert_eq(bytes, 4096);
    cr_assert(bench_parse_bytes("1.5m", &bytes));
    cr_assert_eq(bytes, 1572864);
    cr_assert(bench_parse_bytes("2G", &bytes));
    cr_assert_eq(bytes, INT64_C(2147483648));
    cr_assert_not(bench_parse_bytes("", &bytes));
    cr_assert_not(bench_parse_bytes("-1", &bytes));
    cr_assert_not(bench_parse_bytes("4KB", &bytes));
    cr_assert_not(bench_parse_bytes("nan", &bytes));
}

Test(options, link)
{
    static const struct {
        const char *text;
        double latency, bandwidth;
    } good[] = {{"5us,2GB/s", 5e-6, 2e9}, {"5e-6,8e8", 5e-6, 8e8}, {"0,1MB/s", 0, 1e6},
                {"1ms,3KB/s", 1e-3, 3e3}, {"2s,7B/s", 2, 7},       {"9ns,1TB/s", 9e-9, 1e12}};
    static const char *const bad[] = {"",       "5us",     "5us,", ",2GB/s",     "5us,2GB", "5 us,1",
                                      "-1us,1", "5us,nan", "11,1", "5us,2GB/s,", "gem"};
    tp_link link;
    bool gemm;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert(bench_parse_link(good[i].text, &link), "%s", good[i].text);
        cr_assert_float_eq(link.latency_seconds, good[i].latency, 1e-12 * good[i].latency, "%s", good[i].text);
        cr_assert_float_eq(link.bytes_per_second, good[i].bandwidth, 1e-12 * good[i].bandwidth, "%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(bench_parse_link_or_gemm(bad[i], &link, &gemm), "%s", bad[i]);
    cr_assert(bench_parse_link_or_gemm("gemm", &link, &gemm) && gemm && link.latency_seconds > 0);
    cr_assert(bench_parse_link_or_gemm("2us,gemm", &link, &gemm) && gemm && link.latency_seconds == 2e-6);
    cr_assert_not(bench_parse_link("2us,gemm", &link));
}

Test(options, every_kind_is_read)
{
    cr_assert(READ(BENCH_COLLECTIVE, "--ranks", "1,2,64", "-b", "1K", "--end=2M", "-f", "1.5", "-d", "bf16,i64", "-o",
                   "all", "--no-check", "--json", "--csv", "f.csv"),
              "%s", message);
    cr_assert_eq(options.ranks.count, 3);
    cr_assert_eq(options.ranks.value[2], 64);
    cr_assert_eq(options.begin_bytes, 1024);
    cr_assert_eq(options.end_bytes, 2097152);
    cr_assert_eq(options.factor, 1.5);
    cr_assert_eq(options.dtypes.count, 2);
    cr_assert_eq(options.dtypes.value[0], TP_DTYPE_BF16);
    cr_assert_eq(options.dtypes.value[1], TP_DTYPE_I64);
    cr_assert_eq(options.operations.count, 6);
    cr_assert(options.no_check);
    cr_assert_str_eq(options.json, "-");
    cr_assert_str_eq(options.csv, "f.csv");
}

Test(options, texts_repeat_and_choices_have_a_base)
{
    cr_assert(
        READ(BENCH_SWEEP, "--text", "a", "--text", "b", "--scaling", "weak", "--family", "llama", "--isa", "portable"),
        "%s", message);
    cr_assert_eq(options.text.count, 2);
    cr_assert_str_eq(options.text.value[1], "b");
    cr_assert_eq(options.scaling, BENCH_WEAK);
    cr_assert_eq(options.family, TP_MODEL_LLAMA + 1);
    cr_assert_eq(options.isa, TP_ISA_PORTABLE);
}

/* Every message names the field and both numbers, or what is known. */
Test(options, refusals)
{
    static const struct {
        unsigned command;
        const char *word[2];
        const char *say[3];
    } cases[] = {
        {BENCH_SWEEP, {"--ranks", "0"}, {"--ranks", "0", "[1, 64]"}},
        {BENCH_SWEEP, {"--ranks", "65"}, {"--ranks", "65", "[1, 64]"}},
        {BENCH_SWEEP, {"--ranks", "1,,2"}, {"--ranks", "empty", ""}},
        {BENCH_SWEEP, {"--ranks", "two"}, {"--ranks", "two", "whole number"}},
        {BENCH_SWEEP, {"--steps", "1"}, {"--steps", "1", "[2, 4096]"}},
        {BENCH_SWEEP, {"--dropout", "1.5"}, {"--dropout", "1.5", "[0, 0.99]"}},
        {BENCH_SWEEP, {"--dropout", "nan"}, {"--dropout", "nan", "not a number"}},
        {BENCH_SWEEP, {"--dtype", "bf61"}, {"--dtype", "bf61", "'bf16'"}},
        {BENCH_SWEEP, {"--layer", "2"}, {"--layer", "did you mean", "--layers"}},
        {BENCH_GEMM, {"--ranks", "2"}, {"--ranks", "does not belong", "here"}},
        {BENCH_GEMM, {"stray", "word"}, {"'stray'", "no option", "--help"}},
        {BENCH_GEMM, {"--no-check=1", ""}, {"--no-check", "no value", ""}},
        {BENCH_COLLECTIVE, {"-b", "4X"}, {"--begin", "4X", "not a size"}},
        {BENCH_COLLECTIVE, {"--seed", "99999999999999999999"}, {"--seed", "99999999999999999999", "outside"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_not(read_line(cases[i].command, cases[i].word[1][0] != '\0' ? 2 : 1, cases[i].word),
                      "case %zu is taken", i);
        for (int part = 0; part < 3; part++)
            cr_assert_not_null(strstr(message, cases[i].say[part]), "case %zu: '%s' lacks '%s'", i, message,
                               cases[i].say[part]);
    }
    cr_assert_not(READ(BENCH_SWEEP, "--steps"));
    cr_assert_not_null(strstr(message, "needs a value"), "%s", message);
}

/* Of two values none is dropped without a word. */
Test(options, twice)
{
    cr_assert_not(READ(BENCH_PLAN, "--plan", "a.txt", "--plan", "b.txt"));
    cr_assert_not_null(strstr(message, "--plan is given twice, 'a.txt' and 'b.txt': it takes one value"), "%s",
                       message);
    cr_assert_not(READ(BENCH_COLLECTIVE, "-b", "1K", "--begin=2K"));
    cr_assert_not_null(strstr(message, "--begin is given twice, '1K' and '2K'"), "%s", message);
    cr_assert_not(READ(BENCH_SWEEP, "--ranks", "1", "--seed", "3", "--ranks", "2"));
    cr_assert_not_null(strstr(message, "--ranks is given twice, '1' and '2': it takes one list, with commas"), "%s",
                       message);
    cr_assert_not(READ(BENCH_INFO, "--csv", "--csv", "a.csv"));
    cr_assert_not_null(strstr(message, "--csv is given twice, '-' and 'a.csv'"), "%s", message);
    cr_assert(READ(BENCH_COLLECTIVE, "--no-check", "--no-check"), "%s", message);
}

/* The table: within one command no name or letter twice; values that a choice can't be are unnamed; offsets lie in the
 * struct. */
Test(options, table_is_sound)
{
    for (const bench_option *a = bench_option_table; a->name != NULL; a++) {
        cr_assert_lt(a - bench_option_table, 128);
        cr_assert_lt(a->offset, sizeof(bench_options));
        cr_assert_neq(a->commands, 0u, "--%s", a->name);
        cr_assert_not_null(a->help, "--%s", a->name);
        cr_assert((a->kind == BENCH_OPTION_FLAG) == (a->argument == NULL), "--%s", a->name);
        bool choice = a->kind == BENCH_OPTION_CHOICE || a->kind == BENCH_OPTION_CHOICES;
        cr_assert(choice == (a->choices != NULL), "--%s", a->name);
        for (const bench_option *b = a + 1; b->name != NULL; b++) {
            bool both = (a->commands & b->commands) != 0;
            cr_assert(!both || strcmp(a->name, b->name) != 0, "--%s twice", a->name);
            cr_assert(!both || a->letter == 0 || a->letter != b->letter, "-%c twice", a->letter);
        }
    }
}

Test(options, names_follow_the_library)
{
    for (int dtype = TP_DTYPE_F32; dtype < TP_DTYPE_COUNT; dtype++)
        cr_assert_str_eq(bench_dtype_names[dtype], tp_dtype_name((tp_dtype)dtype));
    cr_assert_null(bench_dtype_names[TP_DTYPE_COUNT]);
    for (int isa = 0; isa < TP_ISA_COUNT; isa++)
        cr_assert_str_eq(bench_isa_names[isa], tp_isa_name((tp_isa)isa));
    cr_assert_null(bench_isa_names[TP_ISA_COUNT]);
    cr_assert_null(bench_activation_names[TP_ACTIVATION_COUNT]);
}
