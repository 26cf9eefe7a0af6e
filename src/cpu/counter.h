/* A counter that only grows and that threads wait for: briefly spinning, then asleep. Lanes, events and the pool are
 * made of it. */
#ifndef TPI_CPU_COUNTER_H
#define TPI_CPU_COUNTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct tpi_counter {
    atomic_uint_fast64_t value;
    pthread_mutex_t lock;
    pthread_cond_t raised;
} tpi_counter;

#define TPI_WAIT_FOREVER ((int64_t)-1)

void tpi_counter_init(tpi_counter *counter);
/* Nobody may wait any more; a raise that is just returning is waited for. */
void tpi_counter_destroy(tpi_counter *counter);
uint64_t tpi_counter_get(tpi_counter *counter);
/* Sets it to `value` unless it is there already, and wakes waiters. */
void tpi_counter_raise(tpi_counter *counter, uint64_t value);
/* Waits until the counter has reached `value`; false after timeout_ms. Spins for spin_ns first. */
bool tpi_counter_wait(tpi_counter *counter, uint64_t value, int64_t spin_ns, int64_t timeout_ms);

/* A condition variable on the monotonic clock, and the moment that many milliseconds ahead. */
void tpi_condition_init(pthread_cond_t *condition);
struct timespec tpi_deadline(int64_t timeout_ms);
void tpi_pause(void);

#endif
