/* A machine's figures as text: whole numbers only, so that no locale changes them. */
#include <tp/auto.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/context.h"
#include "plan/render.h"

static const char footer[] = "end";
/* By device. */
static const char *const headers[] = {[TP_DEVICE_CPU] = "tp-machine 3", [TP_DEVICE_CUDA] = "tp-machine 3 cuda"};

/* Nothing that a machine file tells takes longer. */
#define MOST_SECONDS 3600.0

/* Figures of one number, in units of `unit`. */
static const struct {
    const char *name;
    size_t offset;
    double unit;
} figures[] = {
    {"direct_slowdown_permille", offsetof(tp_machine, direct_slowdown), 1e-3},
    {"call_nanoseconds", offsetof(tp_machine, call_seconds), 1e-9},
    {"transfer_nanoseconds", offsetof(tp_machine, transfer_seconds), 1e-9},
    {"wait_nanoseconds", offsetof(tp_machine, wait_seconds), 1e-9},
    {"lane_nanoseconds", offsetof(tp_machine, lane_seconds), 1e-9},
    {"meet_nanoseconds", offsetof(tp_machine, meet_seconds), 1e-9},
    {"start_nanoseconds", offsetof(tp_machine, start_seconds), 1e-9},
    {"wake_nanoseconds", offsetof(tp_machine, wake_seconds), 1e-9},
    {"activation_picoseconds", offsetof(tp_machine, activation_seconds), 1e-12},
    {"copy_bytes_per_second", offsetof(tp_machine, copy_bytes_per_second), 1},
    {"reduce_bytes_per_second", offsetof(tp_machine, reduce_bytes_per_second), 1},
    {"memory_bytes_per_second", offsetof(tp_machine, memory_bytes_per_second), 1},
    {"gradient_bytes_per_second", offsetof(tp_machine, gradient_bytes_per_second), 1},
    {"link_latency_nanoseconds", offsetof(tp_machine, link) + offsetof(tp_link, latency_seconds), 1e-9},
    {"link_bytes_per_second", offsetof(tp_machine, link) + offsetof(tp_link, bytes_per_second), 1},
};

enum { FIGURES = sizeof figures / sizeof *figures };

static const tp_dtype gemm_dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};

/* Figures by dtype and rows. */
static const struct {
    const char *name;
    size_t offset;
} curves[] = {
    {"gemm", offsetof(tp_machine, gemm)},
    {"weight", offsetof(tp_machine, weight)},
};

enum { CURVES = sizeof curves / sizeof *curves };

static tp_machine_curve *curve_at(tp_machine *machine, int kind, tp_dtype dtype)
{
    return (tp_machine_curve *)(void *)((char *)machine + curves[kind].offset) + dtype;
}

static double *figure_at(tp_machine *machine, int index)
{
    return (double *)(void *)((char *)machine + figures[index].offset);
}

void tp_machine_default(tp_machine *out)
{
    *out = (tp_machine){.name = "not measured",
                        .threads = 1,
                        .direct_slowdown = 1.02,
                        .call_seconds = 1e-6,
                        .transfer_seconds = 2e-6,
                        .wait_seconds = 5e-6,
                        .lane_seconds = 30e-6,
                        .meet_seconds = 45e-6,
                        .start_seconds = 60e-6,
                        .wake_seconds = 20e-6,
                        .activation_seconds = 1e-9,
                        .copy_bytes_per_second = 8e9,
                        .reduce_bytes_per_second = 12e9,
                        .memory_bytes_per_second = 12e9,
                        .lanes_share_cores = true};
    static const double rows[] = {1, 8, 64, 512}, share[] = {0.1, 0.5, 0.9, 1};
    for (int i = 0; i < 4; i++) {
        out->gemm[TP_DTYPE_F32].rows[i] = out->gemm[TP_DTYPE_BF16].rows[i] = rows[i];
        out->gemm[TP_DTYPE_F32].flops[i] = 8e10 * share[i];
        out->gemm[TP_DTYPE_BF16].flops[i] = 16e10 * share[i];
    }
    out->gemm[TP_DTYPE_F32].points = out->gemm[TP_DTYPE_BF16].points = 4;
}

/* Large products with a weight of 4096 x 4096 that is in no cache; few rows take as long as it is read. */
static void default_gpu(tp_machine *out)
{
    static const double rows[] = {1, 16, 64, 256, 1024, 4096};
    static const double f32[] = {0.8e12, 8e12, 14e12, 16e12, 17e12, 18e12},
                        half[] = {1.3e12, 20e12, 75e12, 180e12, 230e12, 240e12};
    *out = (tp_machine){.name = "not measured",
                        .device = TP_DEVICE_CUDA,
                        .threads = 1,
                        .direct_slowdown = 2,
                        .call_seconds = 4e-6,
                        .transfer_seconds = 8e-6,
                        .wait_seconds = 3e-6,
                        .copy_bytes_per_second = 200e9,
                        .reduce_bytes_per_second = 400e9};
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        tp_machine_curve *curve = &out->gemm[dtypes[d]];
        curve->points = sizeof rows / sizeof *rows;
        memcpy(curve->rows, rows, sizeof rows);
        memcpy(curve->flops, d == 0 ? f32 : half, sizeof f32);
    }
}

void tp_machine_default_of(tp_device device, tp_machine *out)
{
    if (device == TP_DEVICE_CUDA)
        default_gpu(out);
    else
        tp_machine_default(out);
}

size_t tp_machine_print(const tp_machine *machine, char *text, size_t bytes)
{
    tpi_writer page = {.text = text, .bytes = text != NULL ? bytes : 0};
    tp_machine copy = *machine;
    const char *header = headers[machine->device == TP_DEVICE_CUDA ? TP_DEVICE_CUDA : TP_DEVICE_CPU];
    tpi_put(&page, "%s\nname %.*s\nthreads %d\nlanes_share_cores %d\n", header, (int)sizeof machine->name - 1,
            machine->name, machine->threads, machine->lanes_share_cores);
    for (int i = 0; i < FIGURES; i++)
        tpi_put(&page, "%s %lld\n", figures[i].name, llround(*figure_at(&copy, i) / figures[i].unit));
    for (int kind = 0; kind < CURVES; kind++)
        for (size_t d = 0; d < sizeof gemm_dtypes / sizeof *gemm_dtypes; d++) {
            const tp_machine_curve *curve = curve_at(&copy, kind, gemm_dtypes[d]);
            for (int i = 0; i < curve->points; i++)
                tpi_put(&page, "%s %s rows %lld flops_per_second %lld\n", curves[kind].name,
                        tp_dtype_name(gemm_dtypes[d]), llround(curve->rows[i]), llround(curve->flops[i]));
        }
    tpi_put(&page, "%s\n", footer);
    return tpi_put_end(&page);
}

/* A whole number that is not negative, and nothing after it. */
static bool read_number(const char *text, const char **end, double *out)
{
    char *after;
    errno = 0;
    long long value = strtoll(text, &after, 10);
    *end = after;
    *out = (double)value;
    return after != text && errno == 0 && value >= 0;
}

static bool read_point(const char *text, int kind, tp_machine *machine)
{
    for (size_t d = 0; d < sizeof gemm_dtypes / sizeof *gemm_dtypes; d++) {
        const char *name = tp_dtype_name(gemm_dtypes[d]), *at = text;
        size_t length = strlen(name);
        if (strncmp(at, name, length) != 0 || strncmp(at + length, " rows ", 6) != 0)
            continue;
        double rows, flops;
        tp_machine_curve *curve = curve_at(machine, kind, gemm_dtypes[d]);
        if (!read_number(at + length + 6, &at, &rows) || strncmp(at, " flops_per_second ", 18) != 0 ||
            !read_number(at + 18, &at, &flops))
            return false;
        double before = curve->points > 0 ? curve->rows[curve->points - 1] : 0;
        if (*at != '\0' || curve->points == TP_MACHINE_POINTS || rows <= before || flops <= 0)
            return false;
        curve->rows[curve->points] = rows;
        curve->flops[curve->points++] = flops;
        return true;
    }
    return false;
}

/* What a text has told so far: each figure comes once. */
enum { SEEN_NAME, SEEN_THREADS, SEEN_LANES, SEEN_END, SEEN_FIGURES, SEEN = SEEN_FIGURES + FIGURES };

typedef struct reading {
    tp_machine *machine;
    bool seen[SEEN];
} reading;

static const char *const plain_names[SEEN_FIGURES] = {"name", "threads", "lanes_share_cores", "end"};

static const char *name_of(int index)
{
    return index < SEEN_FIGURES ? plain_names[index] : figures[index - SEEN_FIGURES].name;
}

static bool take_number(reading *r, int index, const char *text)
{
    const char *end;
    double number;
    if (!read_number(text, &end, &number) || *end != '\0')
        return false;
    if (index == SEEN_THREADS) {
        r->machine->threads = (int)fmin(number, 4096);
        return number >= 1 && number <= 4096;
    }
    if (index == SEEN_LANES) {
        r->machine->lanes_share_cores = number > 0;
        return number <= 1;
    }
    double unit = figures[index - SEEN_FIGURES].unit;
    *figure_at(r->machine, index - SEEN_FIGURES) = number * unit;
    return unit == 1 || number * unit <= MOST_SECONDS;
}

/* One line after the header; empty lines and # are skipped. Returns what is wrong with it, or NULL. */
static const char *read_line(reading *r, const char *line)
{
    if (*line == '\0' || *line == '#')
        return NULL;
    if (r->seen[SEEN_END])
        return "comes after the end";
    size_t length = strcspn(line, " ");
    const char *value = line + length + (line[length] == ' ');
    for (int kind = 0; kind < CURVES; kind++)
        if (length == strlen(curves[kind].name) && strncmp(line, curves[kind].name, length) == 0)
            return read_point(value, kind, r->machine) ? NULL : "is not understood";
    for (int index = 0; index < SEEN; index++) {
        if (length != strlen(name_of(index)) || strncmp(line, name_of(index), length) != 0)
            continue;
        if (r->seen[index])
            return "comes a second time";
        r->seen[index] = true;
        if (index == SEEN_NAME)
            snprintf(r->machine->name, sizeof r->machine->name, "%s", value);
        else if (index == SEEN_END ? *value != '\0' : !take_number(r, index, value))
            return "is not understood";
        return NULL;
    }
    return "is not understood";
}

static bool take_header(const char *line, tp_machine *machine)
{
    for (size_t device = 0; device < sizeof headers / sizeof *headers; device++)
        if (strcmp(line, headers[device]) == 0) {
            machine->device = (tp_device)device;
            return true;
        }
    return false;
}

/* A file that was cut, or written for another version, is none. */
static tp_status check_complete(const reading *r)
{
    if (!r->seen[SEEN_END])
        return tpi_message(TP_ERR_FORMAT, "machine: the text was cut: its last line must be '%s'", footer);
    for (int index = 0; index < SEEN; index++)
        if (!r->seen[index])
            return tpi_message(TP_ERR_FORMAT, "machine: there is no line '%s'", name_of(index));
    if (r->machine->gemm[TP_DTYPE_F32].points == 0)
        return tpi_message(TP_ERR_FORMAT, "machine: there is no line 'gemm f32 rows R flops_per_second F'");
    return TP_OK;
}

tp_status tp_machine_parse(const char *text, tp_machine *out)
{
    if (text == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_machine_parse: %s is NULL", text == NULL ? "text" : "out");
    *out = (tp_machine){.threads = 1};
    if (*text == '\0')
        return tpi_message(TP_ERR_FORMAT, "machine: the text is empty, its first line must be '%s'",
                           headers[TP_DEVICE_CPU]);
    reading r = {.machine = out};
    for (int number = 1; *text != '\0'; number++) {
        char line[256];
        size_t length = strcspn(text, "\n"), kept = length < sizeof line ? length : sizeof line - 1;
        snprintf(line, sizeof line, "%.*s", (int)kept, text);
        if (kept == length && kept > 0 && line[kept - 1] == '\r') /* lines may end as on other systems */
            line[kept - 1] = '\0';
        if (number == 1 && !take_header(line, out))
            return tpi_message(TP_ERR_FORMAT, "machine: line 1 is '%.40s', must be '%s' or '%s'", line,
                               headers[TP_DEVICE_CPU], headers[TP_DEVICE_CUDA]);
        const char *wrong = number == 1 ? NULL : kept < length ? "is too long" : read_line(&r, line);
        if (wrong != NULL)
            return tpi_message(TP_ERR_FORMAT, "machine: line %d %s: '%.60s'", number, wrong, line);
        text += length + (text[length] == '\n');
    }
    return check_complete(&r);
}

/* Opens without blocking, as a FIFO without a writer would; only regular files are taken. */
static tp_status open_regular(const char *path, FILE **out)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return tpi_message(TP_ERR_IO, "machine: %s: %s", path, strerror(errno));
    struct stat info;
    bool regular = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
    *out = regular ? fdopen(descriptor, "rb") : NULL;
    if (*out != NULL)
        return TP_OK;
    tp_status status =
        tpi_message(TP_ERR_IO, "machine: %s: %s", path, regular ? strerror(errno) : "is not a regular file");
    close(descriptor);
    return status;
}

#define MOST_BYTES 65536

tp_status tp_machine_load(const char *path, tp_machine *out)
{
    if (path == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_machine_load: %s is NULL", path == NULL ? "path" : "out");
    FILE *file;
    TPI_TRY(open_regular(path, &file));
    char *text = malloc(MOST_BYTES);
    size_t length = text != NULL ? fread(text, 1, MOST_BYTES - 1, file) : 0;
    bool failed = ferror(file) != 0, more = fgetc(file) != EOF;
    fclose(file);
    tp_status status = TP_OK;
    if (text == NULL)
        status = tpi_message(TP_ERR_MEMORY, "machine: out of memory");
    else if (failed || more || length == 0)
        status = tpi_message(TP_ERR_IO, "machine: %s: %s", path,
                             failed ? "can't be read"
                             : more ? "is too long"
                                    : "is empty");
    if (status == TP_OK) {
        text[length] = '\0';
        if (strlen(text) < length)
            status = tpi_message(TP_ERR_FORMAT, "machine: %s: byte %zu is 0", path, strlen(text));
        else
            status = tp_machine_parse(text, out);
    }
    free(text);
    return status;
}
