/* tp_bench COMMAND [--option value]... */
#include "command.h"
#include "output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_usage(FILE *file)
{
    fputs("usage: tp_bench COMMAND [--option value]...\n\ncommands:\n", file);
    for (const bench_command *command = bench_command_table; command->name != NULL; command++)
        fprintf(file, "  %-11s %s\n", command->name, command->summary);
    fputs("\ntp_bench COMMAND --help lists a command's options.\n\nexamples:\n"
          "  tp_bench sweep                      train at tensor-parallel degree 1, 2, 4, 8 and compare\n"
          "  tp_bench info                       what this machine can do at most\n"
          "  tp_bench gemm --csv gemm.csv        products of layers against that\n"
          "\nexit status: 0 good, 1 a check failed (bits differ, #wrong > 0), 2 refused options, 3 failure\n",
          file);
}

static void print_help(const bench_command *command)
{
    printf("usage: tp_bench %s [--option value]...\n\n%s: %s.\n\n%s\noptions:\n", command->name, command->name,
           command->summary, command->text);
    for (const bench_option *option = bench_option_table; option->name != NULL; option++) {
        if ((option->commands & command->bit) == 0)
            continue;
        char left[64], letter[8] = "    ";
        if (option->letter != 0)
            snprintf(letter, sizeof letter, "-%c, ", option->letter);
        snprintf(left, sizeof left, "%s--%s %s", letter, option->name,
                 option->argument != NULL ? option->argument : "");
        printf("  %-30s %s\n", left, option->help);
    }
    printf("\nexamples:\n%s", command->examples);
}

static const bench_command *find_command(const char *name)
{
    for (const bench_command *command = bench_command_table; command->name != NULL; command++)
        if (strcmp(name, command->name) == 0)
            return command;
    const char *words[32];
    int count = 0;
    for (const bench_command *command = bench_command_table; command->name != NULL && count < 31; command++)
        words[count++] = command->name;
    words[count] = NULL;
    const char *nearest = bench_nearest(name, words);
    fprintf(stderr, "tp_bench: unknown command '%s'", name);
    if (nearest != NULL)
        fprintf(stderr, "; did you mean '%s'?", nearest);
    fputs("\ntp_bench: tp_bench --help lists all commands\n", stderr);
    return NULL;
}

/* Says so, once, if what was printed did not get out. */
static bool printed_all(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fputs("tp_bench: standard output could not be written\n", stderr);
    return false;
}

/* Path "-": to standard output, of which printed_all() says whether it was good. */
static bool write_file(const bench_table *table, const char *path, void (*write)(const bench_table *, FILE *))
{
    if (strcmp(path, "-") == 0) {
        write(table, stdout);
        return true;
    }
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        fprintf(stderr, "tp_bench: %s: %s\n", path, strerror(errno));
        return false;
    }
    write(table, file);
    bool good = fflush(file) == 0 && !ferror(file);
    good = fclose(file) == 0 && good;
    if (!good)
        fprintf(stderr, "tp_bench: %s: could not be written\n", path);
    return good;
}

static bool write_outputs(const bench_call *call)
{
    const bench_options *options = &call->options;
    const bench_table *table = &call->table;
    bool good = true;
    if (options->json != NULL)
        good = write_file(table, options->json, bench_write_json) && good;
    if (options->csv != NULL)
        good = write_file(table, options->csv, bench_write_csv) && good;
    if (!bench_output_taken(options))
        bench_write_human(table, stdout);
    char message[512];
    if (options->plot != NULL && !bench_write_plot(table, options->plot, message)) {
        fprintf(stderr, "tp_bench: %s\n", message);
        good = false;
    }
    return good;
}

static int run_command(const bench_command *command, bench_call *call)
{
    call->machine = bench_machine_look();
    call->table.command = command->name;
    int status = command->run(call);
    bench_progress_end();
    bool written = call->table.columns == NULL || status == BENCH_USAGE || write_outputs(call);
    written = printed_all() && written;
    if (status != BENCH_OK)
        fprintf(stderr, "tp_bench %s: %s\n", command->name, call->message);
    else if (call->table.failed_checks > 0) {
        fprintf(stderr, "tp_bench %s: %d check%s failed\n", command->name, call->table.failed_checks,
                call->table.failed_checks == 1 ? "" : "s");
        status = BENCH_CHECK_FAILED;
    } else if (!written || call->table.out_of_memory)
        status = BENCH_FAILED;
    bench_table_free(&call->table);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return BENCH_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return printed_all() ? BENCH_OK : BENCH_FAILED;
    }
    const bench_command *command = find_command(argv[1]);
    if (command == NULL)
        return BENCH_USAGE;
    bench_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        fputs("tp_bench: out of memory\n", stderr);
        return BENCH_FAILED;
    }
    int status = BENCH_OK;
    if (!bench_options_read(&call->options, command->bit, command->name, argc - 2, argv + 2, call->message) ||
        (!call->options.help && !bench_outputs_good(&call->options, command->bit, call->message))) {
        fprintf(stderr, "tp_bench %s: %s\n", command->name, call->message);
        status = BENCH_USAGE;
    } else if (call->options.help) {
        print_help(command);
        status = printed_all() ? BENCH_OK : BENCH_FAILED;
    } else
        status = run_command(command, call);
    free(call);
    return status;
}
