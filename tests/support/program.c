#include "program.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

char tpt_printed[TPT_PRINTED_BYTES];

int tpt_program_run(const char *program, const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "'%s' %s 2>&1", program, arguments);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL)
        return -1;
    tpt_printed[fread(tpt_printed, 1, sizeof tpt_printed - 1, pipe)] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void tpt_program_expect(const char *program, const char *arguments, int status, const char *first, const char *second)
{
    int got = tpt_program_run(program, arguments);
    cr_assert_eq(got, status, "%s: exit status %d, not %d:\n%s", arguments, got, status, tpt_printed);
    cr_assert_not_null(strstr(tpt_printed, first), "%s: '%s' is missing:\n%s", arguments, first, tpt_printed);
    cr_assert_not_null(strstr(tpt_printed, second), "%s: '%s' is missing:\n%s", arguments, second, tpt_printed);
}

void tpt_printed_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    cr_assert(file != NULL, "%s cannot be read", path);
    tpt_printed[fread(tpt_printed, 1, sizeof tpt_printed - 1, file)] = '\0';
    fclose(file);
    remove(path);
}
