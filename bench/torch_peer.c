#include "torch_peer.h"

#include "companion.h"
#include "measure.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define END_SECONDS 2

#ifndef BENCH_TORCH_STEP
#define BENCH_TORCH_STEP NULL
#endif

extern char **environ;

const char *bench_torch_python(const char *given)
{
    const char *variable = getenv("TP_BENCH_PYTHON");
    return given != NULL ? given : variable != NULL && *variable != '\0' ? variable : "python3";
}

/* Its environment: ours, with what it is fastest with. Memory that was used once stays with it, on huge pages where
 * these are to be asked for, as ours does. */
static const char **make_environment(const char *threads)
{
    const char *const added[] = {threads, "MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=100000000000",
                                 "MALLOC_TOP_PAD_=268435456", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
                                 "PYTHONWARNINGS=ignore"};
    size_t extra = sizeof added / sizeof *added, count = 0, used = 0;
    while (environ[count] != NULL)
        count++;
    const char **list = malloc((count + extra + 1) * sizeof *list);
    if (list == NULL)
        return NULL;
    memcpy(list, added, sizeof added);
    used = extra;
    for (size_t i = 0; i < count; i++) {
        bool again = false;
        for (size_t j = 0; j < extra; j++)
            again = again || strncmp(environ[i], added[j], (size_t)(strchr(added[j], '=') - added[j]) + 1) == 0;
        if (!again)
            list[used++] = environ[i];
    }
    list[used] = NULL;
    return list;
}

/* The error of starting it; 0: none. */
static int spawn(bench_torch *self, const char *python, const char *script, int threads, int theirs)
{
    char setting[32];
    snprintf(setting, sizeof setting, "OMP_NUM_THREADS=%d", threads);
    const char **environment = make_environment(setting);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (environment == NULL)
        return ENOMEM;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, theirs, STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP); /* so that what it starts can be ended with it */
    posix_spawnattr_setpgroup(&attributes, self->keeper.group);
    const char *arguments[] = {python, script, NULL};
    int error =
        posix_spawnp(&self->child, python, &actions, &attributes, (char *const *)arguments, (char *const *)environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    if (error != 0)
        self->child = 0;
    return error;
}

static void rest(double seconds)
{
    const struct timespec pause = {0, (long)(seconds * 1e9)};
    nanosleep(&pause, NULL);
}

/* Whether the process has ended; it stays to be waited for. */
static bool ended(const bench_torch *self, siginfo_t *how)
{
    *how = (siginfo_t){0};
    return self->child > 0 && waitid(P_PID, (id_t)self->child, how, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           how->si_pid == self->child;
}

static void fill(bench_torch *self)
{
    size_t room = sizeof self->received - self->filled;
    ssize_t got = room > 0 ? recv(self->socket, self->received + self->filled, room, MSG_DONTWAIT) : 0;
    self->filled += got > 0 ? (size_t)got : 0;
}

/* Its side is closed: by what it said last, or by how it ended. */
static bool gone(bench_torch *self, char message[BENCH_MESSAGE])
{
    siginfo_t how;
    fill(self);
    self->received[self->filled < sizeof self->received ? self->filled : sizeof self->received - 1] = '\0';
    const char *why = strstr(self->received, "fail ");
    if (why != NULL && (why == self->received || why[-1] == '\n'))
        return bench_say(message, "--peer torch: %.*s", (int)strcspn(why + 5, "\n"), why + 5);
    double deadline = bench_now() + END_SECONDS;
    while (!ended(self, &how) && bench_now() < deadline)
        rest(0.01);
    const char *kind = how.si_pid == 0             ? "closed its side"
                       : how.si_code == CLD_EXITED ? "ended with status"
                                                   : "was ended by signal";
    char number[16] = "";
    if (how.si_pid != 0)
        snprintf(number, sizeof number, " %d", how.si_status);
    if (self->name[0] == '\0')
        return bench_say(message, "--peer torch: the interpreter %s%s before it said anything", kind, number);
    return bench_say(message, "--peer torch: the process %s%s after %lld steps", kind, number, (long long)self->steps);
}

/* Sleeps until the socket can be read or written. */
static bool wait_for(bench_torch *self, short events, double deadline, char message[BENCH_MESSAGE])
{
    for (;;) {
        siginfo_t how;
        struct pollfd poller = {self->socket, events, 0};
        double left = deadline - bench_now();
        if (left <= 0)
            return bench_say(message, "--peer torch: no answer for %g s after %lld steps (--patience)", self->patience,
                             (long long)self->steps);
        bool over = ended(self, &how); /* asked for before: what it said until then is in the socket */
        if (poll(&poller, 1, over ? 0 : left < 0.1 ? (int)(left * 1e3) + 1 : 100) > 0)
            return true;
        if (over)
            return gone(self, message);
    }
}

bool bench_torch_send(bench_torch *self, const void *data, size_t bytes, char message[BENCH_MESSAGE])
{
    double deadline = bench_now() + self->patience;
    for (size_t done = 0; done < bytes;) {
        ssize_t sent = send(self->socket, (const char *)data + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0)
            done += (size_t)sent;
        else if (errno != EAGAIN && errno != EINTR)
            return gone(self, message);
        else if (!wait_for(self, POLLOUT, deadline, message))
            return false;
    }
    return true;
}

bool bench_torch_line(bench_torch *self, char message[BENCH_MESSAGE], const char *format, ...)
{
    char line[BENCH_MESSAGE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    return bench_torch_send(self, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1, message);
}

/* The next line, which must begin with `word`; what follows that goes to `text`. */
static bool answer(bench_torch *self, const char *word, char text[BENCH_TORCH_LINE], char message[BENCH_MESSAGE])
{
    double deadline = bench_now() + self->patience;
    char *end;
    while ((end = memchr(self->received, '\n', self->filled)) == NULL) {
        if (!wait_for(self, POLLIN, deadline, message))
            return false;
        size_t before = self->filled;
        fill(self);
        if (self->filled == before)
            return before == sizeof self->received ? bench_say(message, "--peer torch: a line without an end")
                                                   : gone(self, message);
    }
    size_t length = (size_t)(end - self->received), skip = strlen(word) + 1;
    memcpy(text, self->received, length);
    text[length] = '\0';
    self->filled -= length + 1;
    memmove(self->received, end + 1, self->filled);
    if (strncmp(text, "fail ", 5) == 0)
        return bench_say(message, "--peer torch: %.400s", text + 5);
    if (length < skip || strncmp(text, word, skip - 1) != 0 || text[skip - 1] != ' ')
        return bench_say(message, "--peer torch: expected '%s', it said '%.60s'", word, text);
    memmove(text, text + skip, length - skip + 1);
    return true;
}

bool bench_torch_start(bench_torch *self, const char *python, int threads, double patience, char message[BENCH_MESSAGE])
{
    char text[BENCH_TORCH_LINE], script[PATH_MAX];
    int ends[2];
    *self = (bench_torch){.keeper = {.pipe = -1}, .socket = -1, .patience = patience};
    if (!bench_companion("torch_step.py", BENCH_TORCH_STEP, script, sizeof script))
        return bench_say(message, "--peer torch: torch_step.py is neither beside tp_bench nor where it was installed");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return bench_say(message, "--peer torch: no socket: %s", strerror(errno));
    self->socket = ends[0];
    int unwatched = bench_keeper_start(&self->keeper);
    int error = unwatched == 0 ? spawn(self, python, script, threads, ends[1]) : 0;
    close(ends[1]);
    bool good = unwatched == 0 && error == 0;
    if (unwatched != 0)
        bench_say(message, "--peer torch: /bin/sh, which watches over it, can't be run: %s", strerror(unwatched));
    else if (!good)
        bench_say(message, "--peer torch: '%.200s' can't be run: %s (--python names an interpreter that has PyTorch)",
                  python, strerror(error));
    good = good && answer(self, "hello", text, message);
    if (good)
        snprintf(self->name, sizeof self->name, "%.190s", text);
    else
        bench_torch_stop(self);
    return good;
}

bool bench_torch_ready(bench_torch *self, char message[BENCH_MESSAGE])
{
    char text[BENCH_TORCH_LINE];
    if (!bench_torch_line(self, message, "go\n") || !answer(self, "ready", text, message))
        return false;
    snprintf(self->name, sizeof self->name, "%.190s", text);
    return true;
}

/* False if it is no sample, or has a time that can't be: what took longer than the patience was not waited for. */
static bool read_sample(const char *text, double longest, bench_torch_sample *out)
{
    double lost;
    int length = 0;
    if (sscanf(text, "%lf %lf %lf %lf %lf %lf %lf%n", &out->seconds, &out->forward, &out->backward, &out->optimizer,
               &lost, &out->loss, &out->norm, &length) != 7 ||
        text[length] != '\0')
        return false;
    const double times[] = {out->seconds, out->forward, out->backward, out->optimizer};
    bool good = true;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        good = good && isfinite(times[i]) && times[i] > 0 && times[i] <= longest;
    out->clean = bench_is_clean(1, out->seconds, lost);
    return good && isfinite(lost) && lost >= 0;
}

bool bench_torch_step(bench_torch *self, const int32_t *ids, const int32_t *targets, int64_t tokens,
                      bench_torch_sample *out, char message[BENCH_MESSAGE])
{
    char text[BENCH_TORCH_LINE];
    size_t bytes = (size_t)tokens * sizeof *ids;
    if (!bench_torch_line(self, message, "step\n") || !bench_torch_send(self, ids, bytes, message) ||
        !bench_torch_send(self, targets, bytes, message) || !answer(self, "step", text, message))
        return false;
    if (!read_sample(text, self->patience, out))
        return bench_say(message,
                         "--peer torch: of a step it said '%.160s', must be four times above 0 and at most %g s "
                         "(--patience), what it lost, loss and norm",
                         text, self->patience);
    self->steps++;
    return true;
}

void bench_torch_stop(bench_torch *self)
{
    siginfo_t how;
    if (self->socket >= 0)
        close(self->socket); /* the end of its input: it ends by itself */
    double deadline = bench_now() + END_SECONDS;
    while (self->child > 0 && !ended(self, &how) && bench_now() < deadline)
        rest(0.01);
    pid_t child = self->child;
    bench_keeper_end(&self->keeper); /* its group: also what it started */
    if (child > 0)
        waitpid(child, NULL, 0);
    *self = (bench_torch){.keeper = {.pipe = -1}, .socket = -1};
}
