#include "output.h"

#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUTPUTS 6

typedef struct output {
    const char *option, *path;
    bool standard; /* "-" is standard output, not a file of that name */
} output;

static const char *kind_of(mode_t mode)
{
    if (S_ISDIR(mode))
        return "a directory";
    if (S_ISFIFO(mode))
        return "a FIFO";
    if (S_ISSOCK(mode))
        return "a socket";
    return S_ISBLK(mode) ? "a block device" : "no file";
}

/* A name that is free: made and taken away. O_EXCL sees to it that only what was made here is taken away. */
static bool can_be_made(const char *option, const char *path, char *message)
{
    struct stat link;
    if (lstat(path, &link) == 0)
        return bench_say(message, "--%s %s: a link to a file that does not exist", option, path);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return bench_say(message, "--%s %s: %s", option, path, strerror(errno));
    close(descriptor);
    unlink(path);
    return true;
}

bool bench_output_good(const char *option, const char *path, char message[BENCH_MESSAGE])
{
    struct stat file;
    if (stat(path, &file) != 0)
        return errno == ENOENT ? can_be_made(option, path, message)
                               : bench_say(message, "--%s %s: %s", option, path, strerror(errno));
    if (!S_ISREG(file.st_mode) && !S_ISCHR(file.st_mode))
        return bench_say(message, "--%s %s: is %s, not a regular file", option, path, kind_of(file.st_mode));
    if (access(path, W_OK) != 0)
        return bench_say(message, "--%s %s: %s", option, path, strerror(errno));
    return true;
}

static bool is_file(const output *o)
{
    return o->path != NULL && !(o->standard && strcmp(o->path, "-") == 0);
}

/* The folder that a name lies in. */
static bool look_at_folder(const char *path, struct stat *folder)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return stat(".", folder) == 0;
    char *name = strndup(path, (size_t)(slash - path) + 1);
    bool good = name != NULL && stat(name, folder) == 0;
    free(name);
    return good;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Whatever the two are called: the same regular file, or the same free name of the same folder. */
static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    bool there_a = stat(a, &x) == 0, there_b = stat(b, &y) == 0;
    if (there_a != there_b)
        return false;
    if (there_a)
        return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    return strcmp(last_part(a), last_part(b)) == 0 && look_at_folder(a, &x) && look_at_folder(b, &y) &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool plot_good(const char *path, char *message)
{
    size_t length = strlen(path);
    const char *suffix = length > 4 ? path + length - 4 : "";
    if (strcmp(suffix, ".svg") != 0 && strcmp(suffix, ".png") != 0)
        return bench_say(message, "--plot %s: the file must end in .svg or .png", path);
    if (!bench_has_gnuplot())
        return bench_say(message, "--plot %s: gnuplot is not installed (Debian: apt-get install gnuplot-nox)", path);
    return true;
}

/* An output over what is read would destroy it, maybe before it was read. */
static bool spares_inputs(const bench_options *options, const output *o, char *message)
{
    const output inputs[] = {{"plan", options->plan_file, true}, {"machine", options->machine_file, false}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].path != NULL && same_file(is_file(&inputs[i]) ? inputs[i].path : "/dev/stdin", o->path))
            return bench_say(message, "--%s %s would overwrite --%s %s, which is read", o->option, o->path,
                             inputs[i].option, inputs[i].path);
    for (int i = 0; i < options->text.count; i++)
        if (same_file(options->text.value[i], o->path))
            return bench_say(message, "--%s %s would overwrite --text %s, which is read", o->option, o->path,
                             options->text.value[i]);
    return true;
}

static bool is_standard(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

const char *bench_output_taken(const bench_options *options)
{
    return is_standard(options->json)    ? "json"
           : is_standard(options->csv)   ? "csv"
           : is_standard(options->svg)   ? "svg"
           : is_standard(options->trace) ? "trace"
                                         : NULL;
}

/* Two things in one stream could be read by nobody. */
static bool takes_standard_alone(const bench_options *options, const output *outputs, char *message)
{
    const char *taken = bench_output_taken(options);
    for (int i = 0; i < OUTPUTS && taken != NULL; i++)
        if (outputs[i].standard && is_standard(outputs[i].path) && strcmp(outputs[i].option, taken) != 0)
            return bench_say(message, "--%s and --%s can't both go to standard output: give one a file", taken,
                             outputs[i].option);
    if (taken != NULL && options->print_text)
        return bench_say(message, "--print and --%s can't both go to standard output: give --%s a file", taken, taken);
    return true;
}

const char *bench_machine_path(const bench_options *options)
{
    return options->out != NULL ? options->out : options->device == TP_DEVICE_CUDA ? "machine-cuda.txt" : "machine.txt";
}

bool bench_outputs_good(const bench_options *options, unsigned command, char message[BENCH_MESSAGE])
{
    const char *machine = (command & BENCH_CALIBRATE) != 0 ? bench_machine_path(options) : options->out;
    const output outputs[OUTPUTS] = {{"json", options->json, true}, {"csv", options->csv, true},
                                     {"plot", options->plot, false}, {"svg", options->svg, true},
                                     {"trace", options->trace, true}, {"out", machine, false}};
    if (!takes_standard_alone(options, outputs, message))
        return false;
    if (options->plot != NULL && !plot_good(options->plot, message))
        return false;
    for (int i = 0; i < OUTPUTS; i++) {
        const output *o = &outputs[i];
        if (!is_file(o))
            continue;
        if (!bench_output_good(o->option, o->path, message) || !spares_inputs(options, o, message))
            return false;
        for (int j = 0; j < i; j++)
            if (is_file(&outputs[j]) && same_file(outputs[j].path, o->path))
                return bench_say(message, "--%s %s and --%s %s are the same file", outputs[j].option, outputs[j].path,
                                 o->option, o->path);
    }
    return true;
}
