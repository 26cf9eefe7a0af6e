/* Waiting for other threads: a short spin, then a futex sleep with a bound. */
#include <errno.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/threads.h"

#define FEWEST_SPINS 8
/* Every so many waits spin for the whole limit, whatever was learnt: ranks that sleep at every gate, each because the
 * others wake up late from the last one, find back to spinning. */
#define TRIAL_PERIOD 32

int64_t tpi_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct timespec timespec_of(int64_t nanoseconds)
{
    return (struct timespec){.tv_sec = (time_t)(nanoseconds / 1000000000), .tv_nsec = (long)(nanoseconds % 1000000000)};
}

/* The kernel may let a thread sleep longer by its timer slack, 50 us by default: too coarse for a link. The thread is the caller's, so it is put back. */
void tpi_sleep_until(int64_t nanoseconds)
{
    struct timespec until = timespec_of(nanoseconds);
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
    if (slack > 0)
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0);
}

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wake_all(tpi_word *word)
{
    syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Sleepers count themselves before the kernel compares the word, and the word changes before they are counted here: one
 * of the two sees the other, so no wake-up is lost. */
void tpi_word_advance(tpi_word *word)
{
    atomic_fetch_add(&word->value, 2);
    if (atomic_load(&word->sleepers) > 0)
        wake_all(word);
}

void tpi_word_fail(tpi_word *word)
{
    atomic_fetch_or(&word->value, 1);
    wake_all(word);
}

static bool spin(tpi_word *word, unsigned seen, tpi_spin *state)
{
    int turns = ++state->waits % TRIAL_PERIOD == 0 ? state->limit : state->turns;
    for (int i = 0; i < turns; i++) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != seen) {
            state->turns = i > state->turns || state->turns * 2 > state->limit ? state->limit : state->turns * 2;
            return true;
        }
        pause_briefly();
    }
    /* It didn't pay: spin less the next time. */
    state->turns = state->turns / 4 > FEWEST_SPINS ? state->turns / 4 : FEWEST_SPINS;
    return false;
}

bool tpi_word_wait(tpi_word *word, unsigned seen, tpi_spin *spinning, int64_t timeout)
{
    if (spin(word, seen, spinning))
        return true;
    struct timespec until = timespec_of(tpi_nanoseconds() + timeout);
    atomic_fetch_add(&word->sleepers, 1);
    bool in_time = true;
    while (in_time && atomic_load(&word->value) == seen) {
        long rc =
            syscall(SYS_futex, &word->value, FUTEX_WAIT_BITSET_PRIVATE, seen, &until, NULL, FUTEX_BITSET_MATCH_ANY);
        in_time = rc == 0 || errno != ETIMEDOUT;
    }
    atomic_fetch_sub(&word->sleepers, 1);
    return atomic_load(&word->value) != seen;
}
