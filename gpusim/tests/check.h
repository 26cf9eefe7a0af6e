// A test program: GPUSIM_TEST(name) { CHECK(...); } and this header's main(). Each test runs in a child process, with a
// time limit; the program's arguments choose tests by name. Independent of any test framework, and of the product.
#pragma once
#include <gpusim/gpusim.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace check {

struct Test {
    const char *name;
    void (*body)();
};

inline std::vector<Test> &tests()
{
    static std::vector<Test> all;
    return all;
}

inline int &failures()
{
    static int number;
    return number;
}

inline std::string &context()
{
    static std::string text; // the schedule that is run, for messages
    return text;
}

inline bool add(const char *name, void (*body)())
{
    tests().push_back({name, body});
    return true;
}

inline void verify(bool passed, const char *file, int line, const char *expression)
{
    if (passed)
        return;
    failures()++;
    fprintf(stderr, "%s:%d: failed: %s%s%s\n", file, line, expression, context().empty() ? "" : " in ",
            context().c_str());
    for (int i = 0; gpusim_report_text(i) && i < 8; i++)
        fprintf(stderr, "    report: %s\n", gpusim_report_text(i));
}

// The options under which everything must hold: each schedule with each order of blocks, and two more seeds.
inline std::vector<gpusim_options> schedules()
{
    std::vector<gpusim_options> all;
    for (int i = 0; i < 11; i++) {
        gpusim_options options = {};
        options.schedule = i < 9 ? gpusim_schedule(i / 3) : GPUSIM_RANDOM;
        options.order = gpusim_order(i % 3);
        options.seed = uint64_t(i);
        all.push_back(options);
    }
    return all;
}

// The options of the schedule that runs.
inline gpusim_options &chosen()
{
    static gpusim_options options;
    return options;
}

inline void choose(const gpusim_options &options)
{
    chosen() = options;
    gpusim_configure(&options);
}

inline const char *schedule_text(const gpusim_options &options)
{
    static char text[64];
    static const char *const names[] = {"eager", "lazy", "random"}, *const orders[] = {"up", "down", "shuffled"};
    snprintf(text, sizeof text, "%s, %s, seed %d", names[options.schedule], orders[options.order], int(options.seed));
    return text;
}

inline void in_every_schedule(const std::function<void()> &body)
{
    for (const gpusim_options &options : schedules()) {
        choose(options);
        context() = schedule_text(options);
        body();
    }
    context().clear();
}

// The same in processes that run beside each other: for what takes its time by waiting.
inline void in_every_schedule_at_once(const std::function<void()> &body)
{
    std::vector<pid_t> children;
    for (const gpusim_options &options : schedules()) {
        children.push_back(fork());
        if (children.back() == 0) {
            choose(options);
            context() = schedule_text(options);
            body();
            _exit(failures() ? 1 : 0);
        }
    }
    for (pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        failures() += status != 0;
    }
}

// Exactly the reports of one kind, at least one; and none of any other.
inline bool only_reports(gpusim_report_kind kind)
{
    return gpusim_reports(kind) > 0 && gpusim_reports(kind) == gpusim_reports(-1);
}

inline bool run_one(const Test &test)
{
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        alarm(240);
        gpusim_quiet(true);
        gpusim_configure(nullptr);
        test.body();
        fflush(nullptr);
        _exit(failures() ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (WIFSIGNALED(status))
        fprintf(stderr, "%s: ended by signal %d\n", test.name, WTERMSIG(status));
    printf("%s %s\n", passed ? "passed" : "FAILED", test.name);
    return passed;
}

} // namespace check

#define GPUSIM_TEST(name)                                         \
    static void test_##name();                                    \
    static const bool added_##name = check::add(#name, test_##name); \
    static void test_##name()
// A test whose whole body runs in every schedule.
#define GPUSIM_TEST_EVERYWHERE(name)                     \
    static void everywhere_##name();                     \
    GPUSIM_TEST(name)                                    \
    {                                                    \
        check::in_every_schedule(everywhere_##name);     \
    }                                                    \
    static void everywhere_##name()
#define CHECK(condition) check::verify((condition) ? true : false, __FILE__, __LINE__, #condition)

int main(int count, char **names)
{
    int failed = 0, run = 0;
    for (const check::Test &test : check::tests()) {
        bool chosen = count < 2;
        for (int i = 1; i < count; i++)
            chosen = chosen || strcmp(names[i], test.name) == 0;
        if (!chosen)
            continue;
        run++;
        failed += !check::run_one(test);
    }
    printf("%d tests, %d failed\n", run, failed);
    return failed || run == 0;
}
