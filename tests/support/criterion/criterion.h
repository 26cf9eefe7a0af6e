/* A small stand-in for Criterion, for builds with sanitizers: the same test sources, each test in a forked child with a
 * time limit.
 *
 * Criterion 2.4 aborts under the thread sanitizer, and a test whose memory leaks passes. Here a child leaves by exit(),
 * so that a sanitizer's verdict at exit (leak, race) is the child's exit status, and that is what counts. Only what
 * tp's tests use is here. */
#ifndef TPT_CRITERION_H
#define TPT_CRITERION_H

#ifdef __GNUC__
#pragma GCC system_header
#endif

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct criterion_test_extra_data {
    int sentinel;
    void (*init)(void);
    void (*fini)(void);
    int signal;    /* the test must end by this signal */
    int exit_code; /* the test must leave with this status */
    bool disabled;
    const char *description;
    double timeout; /* seconds */
    void *data;
};

typedef struct tpt_test {
    const char *suite, *name; /* name NULL: options of a whole suite */
    void (*body)(void);
    struct criterion_test_extra_data options;
    struct tpt_test *next;
} tpt_test;

void tpt_register(tpt_test *test);

/* Notes a failed check; a fatal one ends the test, from whatever thread. Returns passed. */
bool tpt_check(bool passed, bool fatal, const char *file, int line, const char *expression, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
_Noreturn void tpt_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tpt_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define TPT_REGISTER(test)                               \
    __attribute__((constructor)) static void test##_register(void) \
    {                                                    \
        tpt_register(&test);                             \
    }

#define Test(suite_, name_, ...)                                                      \
    static void suite_##_##name_##_impl(void);                                        \
    static tpt_test suite_##_##name_##_test = {                                       \
        #suite_, #name_, suite_##_##name_##_impl, {.sentinel = 0, ##__VA_ARGS__}, NULL}; \
    TPT_REGISTER(suite_##_##name_##_test)                                             \
    static void suite_##_##name_##_impl(void)

#define TestSuite(suite_, ...)                                                                      \
    static tpt_test suite_##_suite = {#suite_, NULL, NULL, {.sentinel = 0, ##__VA_ARGS__}, NULL};   \
    TPT_REGISTER(suite_##_suite)                                                                    \
    extern int suite_##_suite_ends_here

#define TPT_CHECK(fatal, condition, text, ...)                                                                         \
    ((void)tpt_check((condition), fatal, __FILE__, __LINE__, text, "" __VA_ARGS__))

#define cr_assert(condition, ...) TPT_CHECK(true, !!(condition), #condition, __VA_ARGS__)
#define cr_expect(condition, ...) TPT_CHECK(false, !!(condition), #condition, __VA_ARGS__)
#define cr_assert_not(condition, ...) TPT_CHECK(true, !(condition), "not " #condition, __VA_ARGS__)
#define cr_expect_not(condition, ...) TPT_CHECK(false, !(condition), "not " #condition, __VA_ARGS__)

#define cr_assert_eq(a, b, ...) TPT_CHECK(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) TPT_CHECK(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) TPT_CHECK(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) TPT_CHECK(false, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) TPT_CHECK(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) TPT_CHECK(false, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) TPT_CHECK(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) TPT_CHECK(false, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) TPT_CHECK(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) TPT_CHECK(false, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) TPT_CHECK(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) TPT_CHECK(false, (a) >= (b), #a " >= " #b, __VA_ARGS__)

#define cr_assert_null(a, ...) TPT_CHECK(true, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_expect_null(a, ...) TPT_CHECK(false, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) TPT_CHECK(true, (a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...) TPT_CHECK(false, (a) != NULL, #a " is not NULL", __VA_ARGS__)

#define cr_assert_str_eq(a, b, ...) TPT_CHECK(true, strcmp((a), (b)) == 0, #a " is the text " #b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) TPT_CHECK(false, strcmp((a), (b)) == 0, #a " is the text " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) TPT_CHECK(true, strcmp((a), (b)) != 0, #a " is not the text " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...) TPT_CHECK(false, strcmp((a), (b)) != 0, #a " is not the text " #b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...) TPT_CHECK(true, *(a) == '\0', #a " is empty", __VA_ARGS__)
#define cr_expect_str_empty(a, ...) TPT_CHECK(false, *(a) == '\0', #a " is empty", __VA_ARGS__)
#define cr_assert_str_not_empty(a, ...) TPT_CHECK(true, *(a) != '\0', #a " is not empty", __VA_ARGS__)
#define cr_expect_str_not_empty(a, ...) TPT_CHECK(false, *(a) != '\0', #a " is not empty", __VA_ARGS__)

#define TPT_BYTES_EQUAL(a, b, bytes) (memcmp((a), (b), (bytes)) == 0)
#define cr_assert_arr_eq(a, b, bytes, ...)                                                                             \
    TPT_CHECK(true, TPT_BYTES_EQUAL(a, b, bytes), #a " has the bytes of " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, bytes, ...)                                                                             \
    TPT_CHECK(false, TPT_BYTES_EQUAL(a, b, bytes), #a " has the bytes of " #b, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, bytes, ...)                                                                            \
    TPT_CHECK(true, !TPT_BYTES_EQUAL(a, b, bytes), #a " differs from " #b, __VA_ARGS__)
#define cr_expect_arr_neq(a, b, bytes, ...)                                                                            \
    TPT_CHECK(false, !TPT_BYTES_EQUAL(a, b, bytes), #a " differs from " #b, __VA_ARGS__)

#define TPT_NEAR(a, b, epsilon) (fabs((double)((a) - (b))) <= (double)(epsilon))
#define cr_assert_float_eq(a, b, epsilon, ...) TPT_CHECK(true, TPT_NEAR(a, b, epsilon), #a " is near " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, epsilon, ...) TPT_CHECK(false, TPT_NEAR(a, b, epsilon), #a " is near " #b, __VA_ARGS__)
#define cr_assert_float_neq(a, b, epsilon, ...)                                                                        \
    TPT_CHECK(true, !TPT_NEAR(a, b, epsilon), #a " is not near " #b, __VA_ARGS__)
#define cr_expect_float_neq(a, b, epsilon, ...)                                                                        \
    TPT_CHECK(false, !TPT_NEAR(a, b, epsilon), #a " is not near " #b, __VA_ARGS__)

#define cr_fail(...) TPT_CHECK(false, false, "this line is not reached", __VA_ARGS__)
#define cr_fatal(...) TPT_CHECK(true, false, "this line is not reached", __VA_ARGS__)
#define cr_expect_fail(...) TPT_CHECK(false, false, "this line is not reached", __VA_ARGS__)
#define cr_assert_fail(...) TPT_CHECK(true, false, "this line is not reached", __VA_ARGS__)
#define cr_skip(...) tpt_skip("" __VA_ARGS__)
#define cr_skip_test(...) tpt_skip("" __VA_ARGS__)
#define cr_log_info(...) tpt_log("" __VA_ARGS__)
#define cr_log_warn(...) tpt_log("" __VA_ARGS__)
#define cr_log_error(...) tpt_log("" __VA_ARGS__)

#endif
