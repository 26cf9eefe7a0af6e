/* Faults that the runner, and the sanitizers under it, must call failures. expect_red.sh runs them one by one. */
#include <criterion/criterion.h>

#include <pthread.h>
#include <unistd.h>

static int shared_counter;
static void *volatile kept;

static void *increment(void *unused)
{
    (void)unused;
    for (int i = 0; i < 1000; i++)
        shared_counter++;
    return NULL;
}

Test(planted, nothing)
{
    cr_assert_eq(1 + 1, 2);
}

Test(planted, check)
{
    cr_expect_eq(1 + 1, 3, "two is not %d", 3);
}

Test(planted, crash)
{
    raise(SIGSEGV);
}

/* Limits are ten times as long here as they say. */
Test(planted, hang, .timeout = 0.05)
{
    pause();
}

Test(planted, race)
{
    pthread_t other;
    cr_assert_eq(pthread_create(&other, NULL, increment, NULL), 0);
    increment(NULL);
    pthread_join(other, NULL);
}

Test(planted, leak)
{
    kept = malloc(1000);
    kept = NULL;
}

Test(planted, overflow)
{
    char *memory = malloc(8);
    kept = memory;
    *((char *)kept + 8) = 1;
    free(memory);
}

Test(planted, undefined)
{
    volatile int large = 2147483647;
    large = large + 1;
}
