/* What devices say of themselves, and every reason why one can't be used that a machine without GPUs can show. */
#include <criterion/criterion.h>
#include <string.h>
#include <tp/tp.h>

Test(device, the_cpu_is_there_once)
{
    tp_device_info info;
    cr_assert_eq(tp_device_describe(TP_DEVICE_CPU, 0, NULL, &info), TP_OK);
    cr_assert(info.usable && !info.simulated);
    cr_assert_eq(info.count, 1);
    cr_assert_str_eq(info.name, "cpu");
    cr_assert_str_eq(info.reason, "");
    cr_assert_eq(tp_device_describe(TP_DEVICE_CPU, 1, NULL, &info), TP_ERR_BACKEND);
    cr_assert(!info.usable && strstr(info.reason, "device_index is 1"), "%s", info.reason);
}

Test(device, arguments_are_checked)
{
    tp_device_info info;
    cr_assert_eq(tp_device_describe(TP_DEVICE_CPU, 0, NULL, NULL), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_device_describe((tp_device)7, 0, NULL, &info), TP_ERR_ARGUMENT);
    cr_assert_str_eq(tp_device_name(TP_DEVICE_CPU), "cpu");
    cr_assert_str_eq(tp_device_name(TP_DEVICE_CUDA), "cuda");
    cr_assert_str_eq(tp_device_name((tp_device)7), "?");
}

static void check_reason(const char *plugin, const char *part, const char *other)
{
    tp_device_info info;
    cr_assert_eq(tp_device_describe(TP_DEVICE_CUDA, 0, plugin, &info), TP_ERR_BACKEND);
    cr_assert(!info.usable);
    cr_assert(strstr(info.reason, part) && strstr(info.reason, other), "%s", info.reason);
    cr_assert_str_eq(tp_last_message(), info.reason);
    cr_assert_null(strchr(info.reason, '\n'), "one line: %s", info.reason);
    tp_ctx *ctx = NULL;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.device = TP_DEVICE_CUDA, .plugin = plugin}, &ctx), TP_ERR_BACKEND);
    cr_assert_null(ctx);
    cr_assert(strstr(tp_last_message(), part), "%s", tp_last_message());
}

Test(device, without_a_plugin_cuda_says_so)
{
    check_reason("/nowhere/libtp_cuda.so", "CUDA: no plugin", "/nowhere/libtp_cuda.so");
}

Test(device, a_library_that_is_no_plugin_is_refused)
{
    check_reason("libm.so.6", "CUDA: libm.so.6 is no plugin of tp", "tp_plugin_entry");
}


static tp_status copy_there_and_back(tp_ctx *ctx, void *arg)
{
    (void)arg;
    enum { BYTES = 100003 };
    static unsigned char in[BYTES], out[BYTES]; /* one rank */
    for (int i = 0; i < BYTES; i++)
        in[i] = (unsigned char)(i * 7);
    void *memory;
    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, BYTES, &memory), TP_OK);
    cr_assert_eq(tp_ctx_upload(ctx, memory, in, BYTES), TP_OK);
    memset(in, 0, BYTES); /* the caller's again */
    cr_assert_eq(tp_ctx_download(ctx, out, memory, BYTES), TP_OK);
    for (int i = 0; i < BYTES; i++)
        cr_assert_eq(out[i], (unsigned char)(i * 7), "%d", i);
    cr_assert_eq(tp_ctx_upload(ctx, NULL, NULL, 0), TP_OK);
    cr_assert_eq(tp_ctx_upload(ctx, NULL, in, 1), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_ctx_download(ctx, NULL, memory, 1), TP_ERR_ARGUMENT);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, BYTES);
    return TP_OK;
}

Test(device, memory_goes_up_and_down)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        const tp_run_options options = {.ranks = 1, .ctx = {.lane_delay_seed = seed}};
        cr_assert_eq(tp_run_ranks(&options, copy_there_and_back, NULL), TP_OK);
    }
}
