/* Token data: formats, streams of several files, and files that lie. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tp/data.h>
#include <unistd.h>

#define FILES 3

typedef struct place {
    char directory[64];
    char path[FILES][96];
} place;

static void make_place(place *here, const char *suffix)
{
    snprintf(here->directory, sizeof here->directory, "/tmp/tp-data-XXXXXX");
    cr_assert_not_null(mkdtemp(here->directory));
    for (int i = 0; i < FILES; i++)
        snprintf(here->path[i], sizeof here->path[i], "%s/%d%s", here->directory, i, suffix);
}

static void clean_place(place *here)
{
    for (int i = 0; i < FILES; i++)
        unlink(here->path[i]);
    rmdir(here->directory);
}

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/* An llm.c file of `bytes` bytes in all, tokens of `width` bytes numbered from `first`. */
static void write_llmc(const char *path, uint32_t magic, uint32_t version, uint32_t count, int width, size_t bytes)
{
    unsigned char *content = calloc(1, bytes + 4);
    uint32_t header[3] = {magic, version, count};
    memcpy(content, header, bytes < sizeof header ? bytes : sizeof header);
    for (size_t at = 1024, token = 0; at + (size_t)width <= bytes; at += (size_t)width, token++)
        content[at] = (unsigned char)(token + 7);
    write_file(path, content, bytes);
    free(content);
}

static tp_status open_one(const char *path, tp_data_format format, tp_data **out)
{
    return tp_data_open(&path, 1, format, out);
}

Test(data, text_is_bytes)
{
    place here;
    make_place(&here, ".txt");
    write_file(here.path[0], "ab\xff", 3);
    tp_data *data;
    cr_assert_eq(open_one(here.path[0], TP_DATA_AUTO, &data), TP_OK);
    cr_assert_eq(tp_data_tokens(data), 3);
    cr_assert_eq(tp_data_vocabulary(data), 256);
    int32_t ids[2], targets[2];
    cr_assert_eq(tp_data_read(data, 1, 2, ids, targets), TP_OK);
    cr_assert(ids[0] == 'b' && ids[1] == 255 && targets[0] == 255 && targets[1] == 'a');
    cr_assert_eq(tp_data_read(data, 3 * 1000000007ll + 2, 1, ids, targets), TP_OK);
    cr_assert(ids[0] == 255 && targets[0] == 'a');
    tp_data_close(data);
    clean_place(&here);
}

Test(data, files_are_one_stream)
{
    place here;
    make_place(&here, ".txt");
    write_file(here.path[0], "abc", 3);
    write_file(here.path[1], "d", 1);
    write_file(here.path[2], "ef", 2);
    const char *paths[FILES] = {here.path[0], here.path[1], here.path[2]};
    tp_data *data;
    cr_assert_eq(tp_data_open(paths, FILES, TP_DATA_AUTO, &data), TP_OK);
    cr_assert_eq(tp_data_tokens(data), 6);
    for (int64_t at = 0; at < 12; at++) {
        int32_t ids[5], targets[5];
        cr_assert_eq(tp_data_read(data, at, 5, ids, targets), TP_OK);
        for (int i = 0; i < 5; i++) {
            cr_assert_eq(ids[i], 'a' + (at + i) % 6);
            cr_assert_eq(targets[i], 'a' + (at + i + 1) % 6);
        }
    }
    tp_data_close(data);
    clean_place(&here);
}

Test(data, nanogpt_is_plain_uint16)
{
    place here;
    make_place(&here, ".bin");
    const unsigned char bytes[] = {1, 0, 0x51, 0xC4, 0, 1}; /* 1, 50257, 256 */
    write_file(here.path[0], bytes, sizeof bytes);
    tp_data *data;
    cr_assert_eq(open_one(here.path[0], TP_DATA_AUTO, &data), TP_OK);
    cr_assert_eq(tp_data_tokens(data), 3);
    cr_assert_eq(tp_data_vocabulary(data), 50258);
    tp_data_close(data);
    write_file(here.path[1], "\x02", 2); /* the largest token may be anywhere */
    cr_assert_eq(tp_data_open((const char *[]){here.path[0], here.path[1]}, 2, TP_DATA_AUTO, &data), TP_OK);
    cr_assert_eq(tp_data_vocabulary(data), 50258);
    tp_data_close(data);
    cr_assert_eq(open_one(here.path[0], TP_DATA_AUTO, &data), TP_OK);
    int32_t ids[2], targets[2];
    cr_assert_eq(tp_data_read(data, 0, 2, ids, targets), TP_OK);
    cr_assert(ids[0] == 1 && ids[1] == 50257 && targets[0] == 50257 && targets[1] == 256);
    tp_data_close(data);
    clean_place(&here);
}

Test(data, both_llmc_headers)
{
    place here;
    make_place(&here, ".bin");
    write_llmc(here.path[0], 20240520, 1, 5, 2, 1024 + 5 * 2);
    write_llmc(here.path[1], 20240801, 7, 5, 4, 1024 + 5 * 4);
    for (int i = 0; i < 2; i++) {
        tp_data *data;
        cr_assert_eq(open_one(here.path[i], TP_DATA_AUTO, &data), TP_OK, "%s", tp_last_message());
        cr_assert_eq(tp_data_tokens(data), 5);
        cr_assert_eq(tp_data_vocabulary(data), 12);
        int32_t ids[4], targets[4];
        cr_assert_eq(tp_data_read(data, 0, 4, ids, targets), TP_OK);
        for (int t = 0; t < 4; t++)
            cr_assert(ids[t] == 7 + t && targets[t] == 8 + t);
        tp_data_close(data);
    }
    clean_place(&here);
}

/* What stands before a short name is none of its ending. */
Test(data, a_short_name_is_of_text)
{
    static const char ending[] = ".bin";
    place here;
    make_place(&here, "");
    snprintf(here.path[0], sizeof here.path[0], "%s/%s", here.directory, ending + 1);
    write_file(here.path[0], "abc", 3);
    cr_assert_eq(chdir(here.directory), 0);
    tp_data *data;
    cr_assert_eq(open_one(ending + 1, TP_DATA_AUTO, &data), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_data_tokens(data), 3);
    tp_data_close(data);
    clean_place(&here);
}

/* The file must be refused with this status and a message that contains all the given pieces. */
static void refused(const char *path, tp_data_format format, tp_status status, const char *piece1, const char *piece2)
{
    tp_data *data = (tp_data *)&data;
    cr_assert_eq(open_one(path, format, &data), status, "%s", tp_last_message());
    cr_assert_null(data);
    cr_assert_not_null(strstr(tp_last_message(), piece1), "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), piece2), "%s", tp_last_message());
}

Test(data, hostile_files_are_refused)
{
    place here;
    make_place(&here, ".bin");
    const char *path = here.path[0];
    refused(path, TP_DATA_AUTO, TP_ERR_IO, path, "No such file");
    refused(here.directory, TP_DATA_AUTO, TP_ERR_IO, here.directory, "regular");
    write_file(path, "", 0);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "empty", "0 bytes");
    refused(path, TP_DATA_TEXT, TP_ERR_FORMAT, "empty", "0 bytes");
    write_file(path, "abc", 3);
    refused(path, TP_DATA_NANOGPT, TP_ERR_FORMAT, "3 bytes", "2 bytes");
    refused(path, TP_DATA_LLMC, TP_ERR_FORMAT, "3 bytes", "1024");
    write_llmc(path, 20240520, 1, 4, 2, 1000);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "1000", "1024");
    write_llmc(path, 20240521, 1, 4, 2, 1024 + 8);
    refused(path, TP_DATA_LLMC, TP_ERR_FORMAT, "20240521", "20240520");
    write_llmc(path, 20240520, 2, 4, 2, 1024 + 8);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "version is 2", "version 1");
    write_llmc(path, 20240801, 1, 4, 4, 1024 + 16);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "version is 1", "version 7");
    write_llmc(path, 20240520, 1, 5, 2, 1024 + 8);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "5 tokens", "8 bytes");
    write_llmc(path, 20240520, 1, 3, 2, 1024 + 8);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "3 tokens", "8 bytes");
    write_llmc(path, 20240520, 1, 4, 2, 1024 + 9);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "4 tokens", "9 bytes");
    write_llmc(path, 20240520, 1, 0, 2, 1024);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "0 tokens", "0 bytes");
    write_llmc(path, 20240520, 1, 0x80000004u, 2, 1024 + 8);
    refused(path, TP_DATA_AUTO, TP_ERR_FORMAT, "-2147483644 tokens", "8 bytes");
    clean_place(&here);
}

/* A file of one token of four bytes. */
static void write_token(const char *path, uint32_t token)
{
    unsigned char content[1024 + 4] = {0};
    uint32_t header[3] = {20240801, 7, 1};
    memcpy(content, header, sizeof header);
    memcpy(content + 1024, &token, 4);
    write_file(path, content, sizeof content);
}

/* The largest token is one less than INT32_MAX: the vocabulary, one more, is an int32 too. */
Test(data, large_tokens_are_refused)
{
    place here;
    make_place(&here, ".bin");
    write_token(here.path[0], 0x80000000u);
    refused(here.path[0], TP_DATA_AUTO, TP_ERR_FORMAT, "token 2147483648", "2147483646");
    write_token(here.path[0], 0xFFFFFFFFu);
    refused(here.path[0], TP_DATA_AUTO, TP_ERR_FORMAT, "token 4294967295", "2147483646");
    write_token(here.path[0], INT32_MAX);
    refused(here.path[0], TP_DATA_AUTO, TP_ERR_FORMAT, "token 2147483647", "2147483646");
    write_token(here.path[0], INT32_MAX - 1);
    tp_data *data;
    cr_assert_eq(open_one(here.path[0], TP_DATA_AUTO, &data), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_data_vocabulary(data), INT32_MAX);
    tp_data_close(data);
    clean_place(&here);
}

/* Nobody writes into it: opening must not wait. */
Test(data, fifo_is_refused, .timeout = 10)
{
    place here;
    make_place(&here, ".bin");
    cr_assert_eq(mkfifo(here.path[0], 0600), 0);
    refused(here.path[0], TP_DATA_AUTO, TP_ERR_IO, here.path[0], "not a regular file");
    refused(here.path[0], TP_DATA_TEXT, TP_ERR_IO, here.path[0], "not a regular file");
    clean_place(&here);
}

Test(data, mixed_formats_are_refused)
{
    place here;
    make_place(&here, "");
    write_file(here.path[0], "text", 4);
    write_llmc(here.path[1], 20240520, 1, 4, 2, 1024 + 8);
    const char *paths[2] = {here.path[0], here.path[1]};
    tp_data *data;
    cr_assert_eq(tp_data_open(paths, 2, TP_DATA_AUTO, &data), TP_ERR_FORMAT);
    cr_assert_null(data);
    cr_assert_not_null(strstr(tp_last_message(), "llm.c"));
    cr_assert_eq(tp_data_open(paths, 0, TP_DATA_AUTO, &data), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_data_open(paths, 1, (tp_data_format)9, &data), TP_ERR_ARGUMENT);
    clean_place(&here);
}

Test(data, reads_past_the_bounds_are_refused)
{
    place here;
    make_place(&here, ".txt");
    write_file(here.path[0], "abcde", 5);
    tp_data *data;
    cr_assert_eq(open_one(here.path[0], TP_DATA_AUTO, &data), TP_OK);
    int32_t ids[8], targets[8];
    cr_assert_eq(tp_data_read(data, 0, 4, ids, targets), TP_OK);
    cr_assert_eq(tp_data_read(data, 0, 0, ids, targets), TP_OK);
    cr_assert_eq(tp_data_read(data, 0, 5, ids, targets), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_last_message(), "count is 5"));
    cr_assert_eq(tp_data_read(data, -1, 1, ids, targets), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_last_message(), "-1"));
    cr_assert_eq(tp_data_read(data, 0, -3, ids, targets), TP_ERR_ARGUMENT);
    tp_data_close(data);
    tp_data_close(NULL);
    clean_place(&here);
}
