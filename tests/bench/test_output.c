/* Output files of tp_bench: what is there survives the look at it, what can't be written is refused before any work. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "output.h"
#include "program.h"

static char message[BENCH_MESSAGE];

static void refused(const char *arguments, const char *first, const char *second)
{
    expect(arguments, 2, first, second);
    cr_assert_null(strstr(tpt_printed, "# tp_bench"), "tp_bench %s: worked before it refused:\n%s", arguments,
                   tpt_printed);
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
    static const char *const names[] = {"rows.csv", "link.csv", "rows.json", "rows.svg",  "link.svg",
                                        "fifo",     "socket",   "nowhere",   "trace.json"};
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
    cr_assert(now.st_ino == before->st_ino && now.st_dev == before->st_dev && now.st_mode == before->st_mode,
              "%s was replaced", path);
}

/* An empty file and a link to it: neither a refused nor a good run replaces them. */
static void survives(const char *refused_run, const char *good_run, const char *file, const char *link)
{
    make_empty(file);
    cr_assert_eq(symlink(file, link), 0);
    FILE *held = fopen(file, "rb"); /* so that no new file can get its inode */
    cr_assert_not_null(held);
    struct stat file_before = look(file), link_before = look(link);
    cr_assert_eq(run(refused_run), 2, "%s", tpt_printed);
    same_place(file, &file_before);
    same_place(link, &link_before);
    cr_assert_eq(look(file).st_size, 0, "a refused run writes nothing");
    cr_assert_eq(run(good_run), 0, "%s", tpt_printed);
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
        survives("plan --plot link.svg --svg missing/x.svg", "plan --chunks 1,2 --plot link.svg", "rows.svg",
                 "link.svg");
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
    cr_assert_eq(run("plan --json rows.json --csv rows.csv"), 0, "%s", tpt_printed);
}

/* Standard output is of one kind; the table gives way. */
Test(output, standard_output_is_taken_once)
{
    static const char *const kinds[] = {"json", "csv", "svg", "trace"};
    static const char *const begins[] = {"{\n  \"command\"", "algorithm,", "<svg ", "{\"displayTimeUnit\""};
    for (int i = 0; i < 4; i++) {
        char arguments[64], first[16];
        snprintf(arguments, sizeof arguments, "plan --verify --%s -", kinds[i]);
        cr_assert_eq(run(arguments), 0, "%s", tpt_printed);
        cr_assert_eq(strncmp(tpt_printed, begins[i], strlen(begins[i])), 0, "%s", tpt_printed);
        cr_assert_null(strstr(tpt_printed, "# tp_bench"), "%s", tpt_printed);
        snprintf(first, sizeof first, "--%s", kinds[i]);
        snprintf(arguments, sizeof arguments, "plan --print --%s -", kinds[i]);
        refused(arguments, first, "--print");
        for (int j = 0; j < i; j++) {
            snprintf(arguments, sizeof arguments, "plan --%s - --%s -", kinds[i], kinds[j]);
            refused(arguments, first, "can't both go to standard output");
        }
    }
    refused("linear --overlap pull --trace - --csv", "--trace", "can't both go to standard output");
}

static void check_untouched(const char *path, const char *wanted)
{
    tpt_printed_file(path);
    cr_assert_str_eq(tpt_printed, wanted);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
}

/* What is read is not written over, whatever it is called, and what is there stays. */
Test(output, inputs_survive, .init = enter_folder, .fini = leave_folder)
{
    static const char plan[] = "plan none gemm ranks 1 chunks 1\n0: E writes input[0], output[0]; G0 0 reads input[0] "
                               "writes output[0]; L reads output[0]\n";
    static const char *const outputs[] = {"svg", "trace", "csv", "json"};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        char arguments[128], option[32];
        snprintf(option, sizeof option, "--%s ./rows.csv", outputs[i]);
        write_text("rows.csv", plan);
        cr_assert_eq(symlink("rows.csv", "link.csv"), 0);
        snprintf(arguments, sizeof arguments, "plan --plan link.csv %s", option);
        refused(arguments, option, "would overwrite --plan link.csv");
        snprintf(arguments, sizeof arguments, "plan --plan - %s < rows.csv", option);
        refused(arguments, option, "would overwrite --plan -");
        unlink("link.csv");
        check_untouched("rows.csv", plan);
    }
    write_text("rows.csv", "tp-machine 1\n");
    refused("plan --machine rows.csv --rows 8 --cols 8 --inner 8 --csv rows.csv", "--csv rows.csv",
            "would overwrite --machine rows.csv");
    check_untouched("rows.csv", "tp-machine 1\n");
    write_text("rows.csv", "a text");
    refused("sweep --text rows.csv --csv rows.csv", "--csv rows.csv", "would overwrite --text rows.csv");
    check_untouched("rows.csv", "a text");
}

/* A search path without gnuplot. */
Test(output, gnuplot_is_looked_for_first, .init = enter_folder, .fini = leave_folder)
{
    cr_assert_eq(setenv("PATH", folder, 1), 0);
    refused("plan --plot rows.svg", "--plot rows.svg", "gnuplot is not installed");
    cr_assert_neq(access("rows.svg", F_OK), 0);
}
