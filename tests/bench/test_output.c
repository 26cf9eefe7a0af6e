/* Output files of tp_bench: what is there survives the look at it, what can't be written is refused before any work. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "output.h"

static char text[65536]; /* what the last run printed, both streams */
static char message[BENCH_MESSAGE];

static int run(const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "'%s' %s 2>&1", TPT_BENCH_PROGRAM, arguments);
    FILE *pipe = popen(command, "r");
    text[fread(text, 1, sizeof text - 1, pipe)] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void refused(const char *arguments, const char *first, const char *second)
{
    int status = run(arguments);
    cr_assert_eq(status, 2, "tp_bench %s: exit status %d, not 2:\n%s", arguments, status, text);
    cr_assert_not_null(strstr(text, first), "tp_bench %s: '%s' is missing:\n%s", arguments, first, text);
    cr_assert_not_null(strstr(text, second), "tp_bench %s: '%s' is missing:\n%s", arguments, second, text);
    cr_assert_null(strstr(text, "# tp_bench"), "tp_bench %s: worked before it refused:\n%s", arguments, text);
}

static char folder[64];

static void enter_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/tp-output-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static void leave_folder(void)
{
    static const char *const names[] = {"rows.csv", "link.csv", "rows.json", "rows.svg", "link.svg", "fifo", "socket", "nowhere", "trace.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(names[i]);
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(rmdir(folder), 0, "something is left in %s", folder);
}

static void make_empty(const char *path)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    fclose(file);
}

static struct stat look(const char *path)
{
    struct stat info;
    cr_assert_eq(lstat(path, &info), 0, "%s is gone", path);
    return info;
}

static void same_place(const char *path, const struct stat *before)
{
    struct stat now = look(path);
    cr_assert(now.st_ino == before->st_ino && now.st_dev == before->st_dev && now.st_mode == before->st_mode, "%s was replaced", path);
}

/* An empty file and a link to it: neither a refused nor a good run replaces them. */
static void survives(const char *refused_run, const char *good_run, const char *file, const char *link)
{
    make_empty(file);
    cr_assert_eq(symlink(file, link), 0);
    FILE *held = fopen(file, "rb"); /* so that no new file can get its inode */
    cr_assert_not_null(held);
    struct stat file_before = look(file), link_before = look(link);
    cr_assert_eq(run(refused_run), 2, "%s", text);
    same_place(file, &file_before);
    same_place(link, &link_before);
    cr_assert_eq(look(file).st_size, 0, "a refused run writes nothing");
    cr_assert_eq(run(good_run), 0, "%s", text);
    same_place(file, &file_before);
    same_place(link, &link_before);
    cr_assert_gt(look(file).st_size, 0);
    fclose(held);
}

Test(output, existing_files_survive, .init = enter_folder, .fini = leave_folder)
{
    survives("plan --rows 0 --csv rows.csv", "plan --csv rows.csv", "rows.csv", "link.csv");
    unlink("rows.csv");
    unlink("link.csv");
    survives("plan --csv link.csv --svg missing/x.svg", "plan --csv link.csv", "rows.csv", "link.csv");
    survives("plan --svg link.svg --trace missing/x.json", "plan --svg link.svg", "rows.svg", "link.svg");
    unlink("rows.svg");
    unlink("link.svg");
    if (bench_outputs_good(&(bench_options){.plot = "rows.svg"}, BENCH_PLAN, message)) /* where gnuplot is */
        survives("plan --plot link.svg --svg missing/x.svg", "plan --chunks 1,2 --plot link.svg", "rows.svg", "link.svg");
}

Test(output, a_refused_run_leaves_nothing_new, .init = enter_folder, .fini = leave_folder)
{
    cr_assert(bench_output_good("csv", "rows.csv", message), "%s", message);
    cr_assert_neq(access("rows.csv", F_OK), 0);
    refused("plan --csv rows.csv --svg missing/x.svg", "--svg missing/x.svg", "No such file");
    cr_assert_neq(access("rows.csv", F_OK), 0);
    refused("plan --svg missing/x.svg", "--svg missing/x.svg", "No such file");
    refused("plan --trace missing/x.json", "--trace missing/x.json", "No such file");
    refused("calibrate --out missing/x.txt", "--out missing/x.txt", "No such file");
    refused("mlp --overlap ring --trace missing/x.json", "--trace missing/x.json", "No such file");
    refused("info --csv missing/x.csv", "--csv missing/x.csv", "No such file");
}

Test(output, what_is_no_file_is_refused, .init = enter_folder, .fini = leave_folder, .timeout = 30)
{
    cr_assert_eq(mkfifo("fifo", 0600), 0);
    cr_assert_eq(symlink("missing", "nowhere"), 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(descriptor, (const struct sockaddr *)&address, sizeof address), 0);
    refused("info --csv fifo", "--csv fifo", "a FIFO");
    refused("plan --svg fifo", "--svg fifo", "a FIFO");
    refused("plan --trace fifo", "--trace fifo", "a FIFO");
    refused("calibrate --out fifo", "--out fifo", "a FIFO");
    refused("info --json .", "--json .", "a directory");
    refused("info --json socket", "--json socket", "a socket");
    refused("info --json nowhere", "--json nowhere", "does not exist");
    close(descriptor);
    struct stat fifo = look("fifo");
    cr_assert(S_ISFIFO(fifo.st_mode));
    cr_assert(S_ISLNK(look("nowhere").st_mode));
}

Test(output, a_fifo_is_no_input, .init = enter_folder, .fini = leave_folder, .timeout = 30)
{
    cr_assert_eq(mkfifo("fifo", 0600), 0);
    refused("sweep --text fifo", "fifo", "not a regular file");
    refused("plan --machine fifo --rows 8 --cols 8 --inner 8", "fifo", "not a regular file");
    refused("mlp --overlap auto --machine fifo", "fifo", "not a regular file");
}

Test(output, one_file_for_two_outputs_is_refused, .init = enter_folder, .fini = leave_folder)
{
    refused("plan --json rows.csv --csv rows.csv", "--json rows.csv", "same file");
    refused("plan --json rows.csv --csv ./rows.csv", "--csv ./rows.csv", "same file");
    refused("plan --svg trace.json --trace trace.json", "--svg trace.json", "same file");
    make_empty("rows.csv");
    cr_assert_eq(symlink("rows.csv", "link.csv"), 0);
    refused("plan --json rows.csv --csv link.csv", "--csv link.csv", "same file");
    cr_assert_eq(run("plan --json rows.json --csv rows.csv"), 0, "%s", text);
}

/* A search path without gnuplot. */
Test(output, gnuplot_is_looked_for_first, .init = enter_folder, .fini = leave_folder)
{
    cr_assert_eq(setenv("PATH", folder, 1), 0);
    refused("plan --plot rows.svg", "--plot rows.svg", "gnuplot is not installed");
    cr_assert_neq(access("rows.svg", F_OK), 0);
}
