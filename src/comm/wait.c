/* Waiting for other threads: a short spin, then a futex sleep with a bound. */
#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
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

/* The kernel may let a thread sleep longer by its timer slack, 50 us by default: too coarse for a link. The thread is
 * the caller's, so it is put back. */
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

static void wake_all(atomic_uint *value)
{
    syscall(SYS_futex, value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Until the word was no longer `seen`, or something woke this thread; false at the time-out. */
static bool sleep_on(atomic_uint *value, unsigned seen, const struct timespec *until)
{
    return syscall(SYS_futex, value, FUTEX_WAIT_BITSET_PRIVATE, seen, until, NULL, FUTEX_BITSET_MATCH_ANY) == 0 ||
           errno != ETIMEDOUT;
}

/* Sleepers count themselves before the kernel compares the word, and the word changes before they are counted here: one
 * of the two sees the other, so no wake-up is lost. */
void tpi_word_advance(tpi_word *word)
{
    atomic_fetch_add(&word->value, 2);
    if (atomic_load(&word->sleepers) > 0)
        wake_all(&word->value);
}

void tpi_word_fail(tpi_word *word)
{
    atomic_fetch_or(&word->value, 1);
    wake_all(&word->value);
}

/* Until the word is no longer `seen`, or, `flag`, has come to it or beyond. */
static bool there(const atomic_uint *value, unsigned seen, bool flag)
{
    unsigned now = atomic_load_explicit(value, memory_order_acquire);
    return flag ? (int)(now - seen) >= 0 || (now & 1) : now != seen;
}

static inline __attribute__((always_inline)) bool spin(const atomic_uint *value, unsigned seen, tpi_spin *state,
                                                       bool flag)
{
    int turns = ++state->waits % TRIAL_PERIOD == 0 ? state->limit : state->turns;
    for (int i = 0; i < turns; i++) {
        if (there(value, seen, flag)) {
            state->turns = i > state->turns || state->turns * 2 > state->limit ? state->limit : state->turns * 2;
            return true;
        }
        tpi_pause();
    }
    /* It didn't pay: spin less the next time. */
    state->turns = state->turns / 4 > FEWEST_SPINS ? state->turns / 4 : FEWEST_SPINS;
    return false;
}

bool tpi_word_wait(tpi_word *word, unsigned seen, tpi_spin *spinning, int64_t timeout)
{
    if (spin(&word->value, seen, spinning, false))
        return true;
    struct timespec until = timespec_of(tpi_nanoseconds() + timeout);
    atomic_fetch_add(&word->sleepers, 1);
    bool in_time = true;
    while (in_time && atomic_load(&word->value) == seen)
        in_time = sleep_on(&word->value, seen, &until);
    atomic_fetch_sub(&word->sleepers, 1);
    return atomic_load(&word->value) != seen;
}

bool tpi_flags_usable(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void tpi_fence_all(void)
{
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void tpi_flag_wake(tpi_flag *flag)
{
    wake_all(&flag->round);
}

/* The owner may overwrite the bit with a later round; who waits for that one is through, and others look at the gate's
 * word first (call.c). */
void tpi_flag_fail(tpi_flag *flag)
{
    atomic_fetch_or(&flag->round, 1);
    wake_all(&flag->round);
}

bool tpi_flag_wait(tpi_flag *flag, unsigned round, tpi_spin *spinning, int64_t timeout, tpi_flag_leave leave,
                   const void *arg)
{
    if (spin(&flag->round, round * 2, spinning, true))
        return true;
    struct timespec until = timespec_of(tpi_nanoseconds() + timeout);
    atomic_fetch_add(&flag->sleepers, 1);
    tpi_fence_all();
    bool in_time = true;
    while (in_time && !leave(arg)) {
        unsigned now = atomic_load(&flag->round);
        if ((int)(now - round * 2) >= 0 || (now & 1))
            break;
        in_time = sleep_on(&flag->round, now, &until);
    }
    atomic_fetch_sub(&flag->sleepers, 1);
    return in_time;
}
