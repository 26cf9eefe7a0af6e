#include "plan_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a plan's text: 64 ranks with 16 chunks need a part of it. */
#define MOST_BYTES ((size_t)256 << 20)

/* All of a file with a 0 after it; NULL, with errno, if that can't be had. */
static char *read_all(FILE *file, size_t *length)
{
    size_t room = 65536;
    char *text = malloc(room);
    *length = 0;
    while (text != NULL) {
        *length += fread(text + *length, 1, room - *length - 1, file);
        if (*length + 1 < room)
            break;
        char *more = room < MOST_BYTES ? realloc(text, 2 * room) : NULL;
        if (more == NULL) {
            free(text);
            errno = room < MOST_BYTES ? ENOMEM : EFBIG;
            return NULL;
        }
        text = more;
        room *= 2;
    }
    if (text != NULL && ferror(file)) {
        free(text);
        return NULL;
    }
    if (text != NULL)
        text[*length] = '\0';
    return text;
}

int bench_plan_read(bench_call *call, const char *path, tp_plan **out)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    size_t length = 0;
    char *text = file != NULL ? read_all(file, &length) : NULL;
    int problem = errno;
    if (file != NULL && !standard)
        fclose(file);
    if (text == NULL)
        return bench_refuse(call, "--plan %s: %s", path, strerror(problem));
    int status = BENCH_OK;
    if (strlen(text) != length)
        status = bench_refuse(call, "--plan %s: no text: a zero at byte %zu", path, strlen(text));
    else if (tp_plan_parse(text, out) != TP_OK)
        status = bench_refuse(call, "--plan %s: %.300s", path, tp_last_message());
    free(text);
    return status;
}
