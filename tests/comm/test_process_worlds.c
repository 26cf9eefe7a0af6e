/* Worlds of processes: from the environment that launchers set, and what is refused. */
#include <pthread.h>
#include <stdio.h>

#include "ranks.h"

static void set_environment(const char *rank, const char *size, const char *address, int port)
{
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", size, 1);
    setenv("MASTER_ADDR", address, 1);
    setenv("MASTER_PORT", text, 1);
    unsetenv("LOCAL_RANK");
}

Test(process_worlds, made_from_the_environment)
{
    tp_ctx_desc desc = {.threads = 1, .timeout_ms = 10000};
    tp_ctx *ctx;
    float value = 3;
    set_environment("0", "1", "127.0.0.1", tpt_free_port());
    cr_assert_eq(tp_world_create_env(&desc), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    tp_tensor tensor = {.data = &value, .dtype = TP_DTYPE_F32, .dims = 1, .shape = {1}, .stride = {1}};
    cr_assert_eq(tp_all_reduce(ctx, tp_ctx_world(ctx), tensor, tensor, NULL), TP_OK);
    cr_assert_eq(value, 3);
    tp_ctx_destroy(ctx);
    tp_world_destroy(desc.world);
}

Test(process_worlds, the_environment_is_checked)
{
    static const struct {
        const char *name, *value, *words;
    } wrong[] = {{"RANK", "x", "RANK is \"x\""},
                 {"RANK", "", "RANK is not set"},
                 {"WORLD_SIZE", "100", "WORLD_SIZE is \"100\""},
                 {"MASTER_ADDR", "", "MASTER_ADDR"},
                 {"MASTER_PORT", "-1", "MASTER_PORT is \"-1\""},
                 {"LOCAL_RANK", "1.5", "LOCAL_RANK is"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        tp_ctx_desc desc = {.timeout_ms = 1000};
        set_environment("0", "1", "127.0.0.1", tpt_free_port());
        setenv(wrong[i].name, wrong[i].value, 1);
        cr_assert_eq(tp_world_create_env(&desc), TP_ERR_ARGUMENT, "%s", wrong[i].name);
        cr_assert_not_null(strstr(tp_last_message(), wrong[i].words), "%s", tp_last_message());
        cr_assert_null(desc.world);
    }
}

static void *refused_on_the_cpu(void *pointer)
{
    static char no_world[] = "no world", not_refused[] = "not refused";
    const tp_process_desc *process = pointer;
    tp_world *world;
    tp_ctx *ctx;
    if (tp_world_create_processes(process, &world) != TP_OK)
        return no_world;
    const tp_ctx_desc desc = {.threads = 1, .world = world, .rank = process->rank};
    tp_status status = tp_ctx_create(&desc, &ctx);
    bool told = strstr(tp_last_message(), "device is the CPU") != NULL;
    tp_world_destroy(world);
    return status == TP_ERR_UNSUPPORTED && told ? NULL : not_refused;
}

Test(process_worlds, ranks_on_the_cpu_are_refused)
{
    int port = tpt_free_port();
    tp_process_desc zero = {.rank = 0, .ranks = 2, .address = "127.0.0.1", .port = port, .timeout_ms = 10000},
                    one = zero;
    one.rank = 1;
    pthread_t thread;
    void *other;
    cr_assert_eq(pthread_create(&thread, NULL, refused_on_the_cpu, &one), 0);
    const char *own = refused_on_the_cpu(&zero);
    pthread_join(thread, &other);
    cr_assert_null(own, "%s", own);
    cr_assert_null(other, "%s", (char *)other);
}
