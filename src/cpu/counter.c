/* Counters that threads wait for. */
#include "cpu/counter.h"

#include <time.h>

#include "core/context.h"

#define CHECKS_A_CLOCK 64 /* looks at the counter between two looks at the clock */

void tpi_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct timespec tpi_deadline(int64_t timeout_ms)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += (time_t)(timeout_ms / 1000);
    deadline.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000;
    }
    return deadline;
}

void tpi_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void tpi_counter_init(tpi_counter *counter)
{
    atomic_init(&counter->value, 0);
    pthread_mutex_init(&counter->lock, NULL);
    tpi_condition_init(&counter->raised);
}

void tpi_counter_destroy(tpi_counter *counter)
{
    pthread_mutex_lock(&counter->lock);
    pthread_mutex_unlock(&counter->lock);
    pthread_cond_destroy(&counter->raised);
    pthread_mutex_destroy(&counter->lock);
}

uint64_t tpi_counter_get(tpi_counter *counter)
{
    return atomic_load_explicit(&counter->value, memory_order_acquire);
}

void tpi_counter_raise(tpi_counter *counter, uint64_t value)
{
    /* All under the lock: a waiter may destroy the counter as soon as it has seen the value, and destroy takes the
     * lock. */
    pthread_mutex_lock(&counter->lock);
    if (atomic_load_explicit(&counter->value, memory_order_relaxed) < value) {
        atomic_store_explicit(&counter->value, value, memory_order_release);
        pthread_cond_broadcast(&counter->raised);
    }
    pthread_mutex_unlock(&counter->lock);
}

static bool spin(tpi_counter *counter, uint64_t value, int64_t spin_ns)
{
    double end = spin_ns > 0 ? tpi_seconds() + 1e-9 * (double)spin_ns : 0;
    while (spin_ns > 0) {
        for (int i = 0; i < CHECKS_A_CLOCK; i++) {
            if (tpi_counter_get(counter) >= value)
                return true;
            tpi_pause();
        }
        if (tpi_seconds() >= end)
            break;
    }
    return tpi_counter_get(counter) >= value;
}

bool tpi_counter_wait(tpi_counter *counter, uint64_t value, int64_t spin_ns, int64_t timeout_ms)
{
    if (spin(counter, value, spin_ns))
        return true;
    struct timespec deadline = tpi_deadline(timeout_ms < 0 ? 0 : timeout_ms);
    int error = 0;
    pthread_mutex_lock(&counter->lock);
    while (tpi_counter_get(counter) < value && error == 0) {
        if (timeout_ms < 0)
            error = pthread_cond_wait(&counter->raised, &counter->lock);
        else
            error = pthread_cond_timedwait(&counter->raised, &counter->lock, &deadline);
    }
    bool reached = tpi_counter_get(counter) >= value;
    pthread_mutex_unlock(&counter->lock);
    return reached;
}
