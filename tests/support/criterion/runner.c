/* main() of a test program built without Criterion: see criterion.h. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT 120.0
/* Sanitizers slow tests down: a limit written in a test means seconds of an ordinary build. */
#define TIMEOUT_FACTOR 10.0

/* What a child tells its parent, in memory that both see. */
typedef struct tpt_report {
    atomic_int failed_checks;
    atomic_int skipped;
} tpt_report;

typedef struct tpt_tally {
    int tested, passing, failing, crashing;
} tpt_tally;

typedef struct tpt_settings {
    const char *filter;
    double timeout;
    bool verbose;
} tpt_settings;

static tpt_test *first_test;
static tpt_report *report;

void tpt_register(tpt_test *test)
{
    tpt_test **place = &first_test;
    while (*place != NULL)
        place = &(*place)->next;
    *place = test;
}

static void print_message(const char *format, va_list arguments)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    if (text[0] != '\0')
        fprintf(stderr, "[----]   %s\n", text);
}

bool tpt_check(bool passed, bool fatal, const char *file, int line, const char *expression, const char *format, ...)
{
    if (passed)
        return true;
    atomic_fetch_add(&report->failed_checks, 1);
    fprintf(stderr, "[----] %s:%d: not so: %s\n", file, line, expression);
    va_list arguments;
    va_start(arguments, format);
    print_message(format, arguments);
    va_end(arguments);
    if (fatal)
        _exit(1);
    return false;
}

void tpt_skip(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_message(format, arguments);
    va_end(arguments);
    atomic_store(&report->skipped, 1);
    _exit(0);
}

void tpt_log(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_message(format, arguments);
    va_end(arguments);
}

static const struct criterion_test_extra_data *suite_options(const char *suite)
{
    static const struct criterion_test_extra_data none;
    for (const tpt_test *test = first_test; test != NULL; test = test->next) {
        if (test->name == NULL && strcmp(test->suite, suite) == 0)
            return &test->options;
    }
    return &none;
}

/* exit() runs the sanitizers' checks at exit; they change the status if they found something. */
static _Noreturn void run_in_child(const tpt_test *test, const struct criterion_test_extra_data *suite)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    void (*const steps[])(void) = {suite->init, test->options.init, test->body, test->options.fini, suite->fini};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (steps[i] != NULL)
            steps[i]();
    }
    exit(atomic_load(&report->failed_checks) > 0 ? 1 : 0);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Waits for the child; kills it, and all it started, when its time is over. Returns whether it ended by itself. SIGCHLD
 * is blocked. */
static bool wait_for_child(pid_t child, double timeout, int *status)
{
    double end = now() + timeout;
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    for (;;) {
        if (waitpid(child, status, WNOHANG) == child)
            return true;
        double left = end - now();
        if (left <= 0.0) {
            kill(-child, SIGKILL);
            kill(child, SIGKILL);
            while (waitpid(child, status, 0) < 0 && errno == EINTR)
                ;
            return false;
        }
        struct timespec wait = {.tv_sec = left < 1.0 ? 0 : 1, .tv_nsec = left < 1.0 ? (long)(left * 1e9) : 0};
        sigtimedwait(&child_signal, NULL, &wait);
    }
}

/* Turns a child's end into a line of text; NULL if the test passed. */
static const char *verdict(const tpt_test *test, bool in_time, int status, bool *crashed)
{
    static char text[128];
    *crashed = true;
    if (!in_time)
        return "ran past its time limit";
    if (WIFSIGNALED(status)) {
        if (test->options.signal != 0 && WTERMSIG(status) == test->options.signal)
            return NULL;
        snprintf(text, sizeof text, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        return text;
    }
    int failed_checks = atomic_load(&report->failed_checks);
    if (failed_checks > 0) {
        *crashed = false;
        snprintf(text, sizeof text, "%d failed check%s", failed_checks, failed_checks == 1 ? "" : "s");
        return text;
    }
    if (test->options.signal == 0 && WEXITSTATUS(status) == test->options.exit_code)
        return NULL;
    snprintf(text, sizeof text, "exit status %d without a failed check (a sanitizer's finding, or a call of exit)",
             WEXITSTATUS(status));
    return text;
}

/* Forks, waits, and returns verdict(). */
static const char *run_forked(const tpt_test *test, const struct criterion_test_extra_data *suite, double timeout,
                              bool *crashed)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        run_in_child(test, suite);
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    int status = 0;
    bool in_time = wait_for_child(child, timeout, &status);
    return verdict(test, in_time, status, crashed);
}

static void run_test(const tpt_test *test, const tpt_settings *settings, tpt_tally *tally)
{
    const struct criterion_test_extra_data *suite = suite_options(test->suite);
    double timeout = test->options.timeout > 0.0 ? test->options.timeout
                     : suite->timeout > 0.0      ? suite->timeout
                                                 : settings->timeout;
    bool disabled = test->options.disabled || suite->disabled, crashed = false;
    const char *failure = NULL;
    double start = now();
    if (settings->verbose)
        printf("[RUN ] %s::%s\n", test->suite, test->name);
    atomic_store(&report->failed_checks, 0);
    atomic_store(&report->skipped, disabled);
    if (!disabled)
        failure = run_forked(test, suite, timeout * TIMEOUT_FACTOR, &crashed);
    if (failure == NULL && atomic_load(&report->skipped)) {
        printf("[SKIP] %s::%s\n", test->suite, test->name);
        return;
    }
    tally->tested++;
    if (failure == NULL) {
        tally->passing++;
        if (settings->verbose)
            printf("[PASS] %s::%s: (%.2fs)\n", test->suite, test->name, now() - start);
        return;
    }
    tally->failing++;
    tally->crashing += crashed;
    printf("[FAIL] %s::%s: %s (%.2fs)\n", test->suite, test->name, failure, now() - start);
}

static bool parse(int argc, char **argv, tpt_settings *settings)
{
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--verbose") == 0)
            settings->verbose = true;
        else if (strcmp(argv[i], "--filter") == 0 && more)
            settings->filter = argv[++i];
        else if (strcmp(argv[i], "--timeout") == 0 && more)
            settings->timeout = atof(argv[++i]);
        else if (strcmp(argv[i], "--jobs") == 0 && more)
            i++; /* tests run one after the other */
        else
            return false;
    }
    return settings->timeout > 0.0;
}

int main(int argc, char **argv)
{
    tpt_settings settings = {.timeout = DEFAULT_TIMEOUT};
    if (!parse(argc, argv, &settings)) {
        printf("usage: %s [--verbose] [--filter 'SUITE/NAME'] [--timeout SECONDS] [--jobs N]\n", argv[0]);
        return 2;
    }
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_signal, NULL);

    tpt_tally tally = {0};
    for (const tpt_test *test = first_test; test != NULL; test = test->next) {
        char full[256];
        snprintf(full, sizeof full, "%s/%s", test->suite, test->name == NULL ? "" : test->name);
        if (test->name != NULL && (settings.filter == NULL || fnmatch(settings.filter, full, 0) == 0))
            run_test(test, &settings, &tally);
    }
    printf("[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: %d\n", tally.tested, tally.passing,
           tally.failing, tally.crashing);
    return tally.failing > 0 ? 1 : 0;
}
