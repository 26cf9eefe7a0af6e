/* A program that counts what it asks the system for: allocations, mappings, growth and returns, in tpt_asked. Included
 * by one file of it, whose allocator is then the program's. */
#ifndef TPT_ASKED_H
#define TPT_ASKED_H

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_llong tpt_asked;

#ifndef TPT_SANITIZED /* sanitizers have allocators of their own */
/* What the program defines comes before the C library's; these are the C library's own entries under other names. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

void *malloc(size_t bytes)
{
    atomic_fetch_add(&tpt_asked, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    atomic_fetch_add(&tpt_asked, 1);
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    atomic_fetch_add(&tpt_asked, 1);
    return __libc_realloc(memory, bytes);
}

void free(void *memory)
{
    atomic_fetch_add(&tpt_asked, memory != NULL);
    __libc_free(memory);
}

void *memalign(size_t alignment, size_t bytes)
{
    atomic_fetch_add(&tpt_asked, 1);
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    void *memory = memalign(alignment, bytes);
    if (memory == NULL)
        return ENOMEM;
    *out = memory;
    return 0;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int descriptor, off_t offset)
{
    atomic_fetch_add(&tpt_asked, 1);
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, descriptor, offset);
}

int munmap(void *address, size_t bytes)
{
    atomic_fetch_add(&tpt_asked, 1);
    return (int)syscall(SYS_munmap, address, bytes);
}

int madvise(void *address, size_t bytes, int advice)
{
    atomic_fetch_add(&tpt_asked, 1);
    return (int)syscall(SYS_madvise, address, bytes, advice);
}
#endif

#endif
