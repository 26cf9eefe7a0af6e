#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* The group's first process. Its input ends when the last writer of the pipe is gone, which is this process alone. */
static const char watch[] = "trap '' TERM INT HUP; read gone; kill -s TERM 0; sleep 2; kill -s KILL 0";

int bench_keeper_start(bench_keeper *self)
{
    int ends[2];
    *self = (bench_keeper){.pipe = -1};
    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
    /* who reads our output need not wait for it */
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const char *const arguments[] = {"sh", "-c", watch, NULL};
    int error = posix_spawn(&self->group, "/bin/sh", &actions, &attributes, (char *const *)arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    self->pipe = ends[1];
    if (error != 0) {
        self->group = 0;
        bench_keeper_end(self);
    }
    return error;
}

void bench_keeper_end(bench_keeper *self)
{
    if (self->group > 0) {
        kill(-self->group, SIGKILL);
        waitpid(self->group, NULL, 0);
    }
    if (self->pipe >= 0)
        close(self->pipe);
    *self = (bench_keeper){.pipe = -1};
}
