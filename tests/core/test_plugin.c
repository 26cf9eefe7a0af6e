/* Plugins that don't fit, and files that were cut or changed: each is refused by one line, and nothing of them is
 * called. */
#include <criterion/criterion.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tp/tp.h>
#include <unistd.h>

#include "core/context.h"
#include "core/plugin.h"
#include "tpi_contract.h"

static unsigned char *content;
static size_t content_bytes;

static void read_plugin(void)
{
    FILE *file = fopen(TPT_FAKE_PLUGIN, "rb");
    cr_assert_not_null(file);
    fseek(file, 0, SEEK_END);
    content_bytes = (size_t)ftell(file);
    rewind(file);
    content = malloc(content_bytes);
    cr_assert_eq(fread(content, 1, content_bytes, file), content_bytes);
    fclose(file);
}

/* A copy of its own name: the loader knows files that it has seen. */
static const char *write_copy(size_t bytes)
{
    static char path[64];
    strcpy(path, "/tmp/tpt_plugin_XXXXXX");
    int descriptor = mkstemp(path);
    cr_assert(descriptor >= 0 && write(descriptor, content, bytes) == (ssize_t)bytes);
    close(descriptor);
    return path;
}

static void expect_refused(const char *plugin, const char *first, const char *second)
{
    tp_device_info info;
    cr_assert_eq(tp_device_describe(TP_DEVICE_CUDA, 0, plugin, &info), TP_ERR_BACKEND, "%s", first);
    cr_assert(!info.usable && strstr(info.reason, first) && strstr(info.reason, second), "%s and %s: %s", first, second,
              info.reason);
    cr_assert_null(strchr(info.reason, '\n'), "%s", info.reason);
}

Test(plugin, one_that_fits_is_taken)
{
    tp_device_info info;
    cr_assert_eq(tp_device_describe(TP_DEVICE_CUDA, 0, TPT_FAKE_PLUGIN, &info), TP_OK, "%s", tp_last_message());
    cr_assert_str_eq(info.name, "fake");
}

/* The product's version, and a hash that changes with the headers. */
Test(plugin, the_contract_is_a_version_and_a_hash)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d ", TP_VERSION_MAJOR, TP_VERSION_MINOR, TP_VERSION_PATCH);
    const char *contract = TPI_CONTRACT;
    cr_assert_eq(strncmp(contract, version, strlen(version)), 0, "%s", contract);
    cr_assert_eq(strspn(contract + strlen(version), "0123456789abcdef"), 16, "%s", contract);
    cr_assert_lt(sizeof TPI_CONTRACT, TPI_CONTRACT_BYTES);
}

/* Every place of the contract that the file has, with another last digit: refused before its entry, which would end the
 * process, is called. */
Test(plugin, one_of_other_headers_is_refused)
{
    static const char ours[] = TPI_CONTRACT;
    char theirs[sizeof ours];
    memcpy(theirs, ours, sizeof ours);
    theirs[sizeof ours - 2] = ours[sizeof ours - 2] == '0' ? '1' : '0';
    read_plugin();
    int found = 0;
    for (size_t at = 0; at + sizeof ours <= content_bytes; at++)
        if (memcmp(content + at, ours, sizeof ours) == 0) {
            memcpy(content + at, theirs, sizeof theirs);
            found++;
        }
    cr_assert_geq(found, 1);
    setenv("TPT_FAKE_FAULT", "called", 1);
    const char *copy = write_copy(content_bytes);
    expect_refused(copy, theirs, ours);
    unlink(copy);
    free(content);
}

/* As one of before there were contracts has it: an entry only. */
Test(plugin, one_without_a_contract_is_refused)
{
    read_plugin();
    for (size_t at = 0; at + sizeof TPI_PLUGIN_CONTRACT <= content_bytes; at++)
        if (memcmp(content + at, TPI_PLUGIN_CONTRACT, sizeof TPI_PLUGIN_CONTRACT) == 0)
            content[at] = 'x';
    setenv("TPT_FAKE_FAULT", "called", 1);
    const char *copy = write_copy(content_bytes);
    expect_refused(copy, "does not say what it was built from", TPI_CONTRACT);
    unlink(copy);
    free(content);
}

static void expect_fault(const char *fault, const char *first, size_t theirs, size_t ours)
{
    char numbers[96] = "";
    setenv("TPT_FAKE_FAULT", fault, 1);
    if (ours)
        snprintf(numbers, sizeof numbers, "%zu, the library has %zu", theirs, ours);
    expect_refused(TPT_FAKE_PLUGIN, first, numbers);
}

Test(plugin, tables_that_do_not_fit_are_refused_with_what_differs)
{
    expect_fault("version", "version ", TPI_PLUGIN_VERSION + 1, TPI_PLUGIN_VERSION);
    expect_fault("bytes", "tables of bytes ", sizeof(tpi_plugin) + 1, sizeof(tpi_plugin));
    expect_fault("ctx_bytes", "contexts of bytes ", sizeof(tp_ctx) + 1, sizeof(tp_ctx));
    expect_fault("backend_bytes", "backends of bytes ", sizeof(tpi_backend) + 1, sizeof(tpi_backend));
    expect_fault("backend", "it has no backend", 0, 0);
    expect_fault("describe", "it has no description of devices", 0, 0);
    expect_fault("slot", "of its backend is NULL", 0, 0);
    expect_fault("silent", "does not say why", 0, 0);
    expect_fault("endless", "xxxx", 0, 0);
}

enum { TAKEN = 100, REFUSED }; /* no status that a sanitizer ends with */

/* Describes the device of the first `bytes` bytes of the plugin in a process of its own, which must end by itself. */
static int describe_copy(size_t bytes, const char *what, size_t number)
{
    const char *copy = write_copy(bytes);
    pid_t child = fork();
    if (child == 0) {
        tp_device_info info;
        tp_status status = tp_device_describe(TP_DEVICE_CUDA, 0, copy, &info);
        _exit(status == TP_OK ? TAKEN : status == TP_ERR_BACKEND && info.reason[0] ? REFUSED : 1);
    }
    int status = -1;
    cr_assert(child > 0 && waitpid(child, &status, 0) == child);
    unlink(copy);
    cr_assert(WIFEXITED(status) && (WEXITSTATUS(status) == TAKEN || WEXITSTATUS(status) == REFUSED), "%s %zu: %s %d",
              what, number, WIFEXITED(status) ? "exit status" : "signal",
              WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return WEXITSTATUS(status);
}

Test(plugin, files_that_were_cut_are_refused)
{
    enum { PIECES = 100 };
    read_plugin();
    for (size_t i = 0; i < PIECES; i++)
        cr_assert_eq(describe_copy(content_bytes * i / PIECES, "bytes", content_bytes * i / PIECES), REFUSED,
                     "%zu of %d", i, PIECES);
    cr_assert_eq(describe_copy(content_bytes - 1, "bytes", content_bytes - 1), REFUSED);
    cr_assert_eq(describe_copy(content_bytes, "bytes", content_bytes), TAKEN);
    free(content);
}

/* One byte changed, of the header, of the program headers: no crash, whatever it means. */
Test(plugin, changed_headers_do_no_harm)
{
#ifdef TPT_SANITIZED
    static const unsigned char changes[] = {0x01}; /* processes are slow there */
#else
    static const unsigned char changes[] = {0xff, 0x01, 0x10, 0x80};
#endif
    read_plugin();
    ElfW(Ehdr) head;
    memcpy(&head, content, sizeof head);
    size_t end = head.e_phoff + (size_t)head.e_phnum * sizeof(ElfW(Phdr)), refused = 0, changed = 0;
    cr_assert_lt(end, content_bytes);
    for (size_t at = 0; at < end; at++)
        for (size_t i = 0; i < sizeof changes; i++, changed++) {
            content[at] ^= changes[i];
            refused += describe_copy(content_bytes, "byte", at) == REFUSED;
            content[at] ^= changes[i];
        }
    cr_assert_gt(refused, changed / 2, "%zu of %zu", refused, changed);
    free(content);
}

Test(plugin, what_is_no_file_is_refused)
{
    expect_refused("/dev/null", "no plugin", "it is no file");
    expect_refused("/tmp", "no plugin", "it is no file");
}
