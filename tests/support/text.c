#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void give_up(const char *what)
{
    fprintf(stderr, "text: %s\n", what);
    exit(99);
}

tp_data *tpt_open_text(int64_t bytes)
{
    static const char words[] = "the cat sat on the mat and the dog lay on the rug; ";
    char path[] = "/tmp/tp-text-XXXXXX";
    int descriptor = mkstemp(path);
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (file == NULL)
        give_up("no temporary file");
    for (int64_t i = 0; i < bytes; i++)
        fputc(words[i % (int64_t)(sizeof words - 1)], file);
    if (fclose(file) != 0)
        give_up("no space");
    const char *paths[1] = {path};
    tp_data *data;
    if (tp_data_open(paths, 1, TP_DATA_TEXT, &data) != TP_OK)
        give_up(tp_last_message());
    unlink(path);
    return data;
}
