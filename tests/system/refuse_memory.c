/* Refuses chosen allocations of a process that is started with this library in LD_PRELOAD. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static atomic_long seen, first_refused, last_refused, refused;
static size_t least = SIZE_MAX;

/* Refuse allocations number first to last of those of at least n bytes, counted from now on. */
void refuse(long first, long last, size_t n) {
    seen = refused = 0;
    first_refused = first;
    last_refused = last;
    least = n;
}

long allocations_seen(void) { return seen; }
long allocations_refused(void) { return refused; }

static int is_refused(size_t n) {
    if (n < least)
        return 0;
    long number = atomic_fetch_add(&seen, 1) + 1;
    if (number < first_refused || number > last_refused)
        return 0;
    atomic_fetch_add(&refused, 1);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return is_refused(n) ? NULL : __libc_malloc(n); }
void *calloc(size_t a, size_t b) {
    return b && a <= SIZE_MAX / b && is_refused(a * b) ? NULL : __libc_calloc(a, b);
}
void *realloc(void *p, size_t n) { return is_refused(n) ? NULL : __libc_realloc(p, n); }
void *memalign(size_t to, size_t n) { return is_refused(n) ? NULL : __libc_memalign(to, n); }
void *aligned_alloc(size_t to, size_t n) { return memalign(to, n); }
int posix_memalign(void **p, size_t to, size_t n) {
    return (*p = memalign(to, n)) || !n ? 0 : ENOMEM;
}
void *mmap(void *at, size_t n, int protection, int flags, int file, off_t offset) {
    if ((flags & MAP_ANONYMOUS) && is_refused(n))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, n, protection, flags, file, offset);
}
/* What a program is linked to that was compiled for large files, as Python is. */
void *mmap64(void *at, size_t n, int protection, int flags, int file, off_t offset) {
    return mmap(at, n, protection, flags, file, offset);
}
