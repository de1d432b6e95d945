/* The wall clock of a process, away from that of its machine by the seconds in a file that others may change.
   Only the wall clock: how much time passes stays as it is. Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (file >= 0) {
        void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (found != MAP_FAILED)
            ahead = found;
        close(file);
    }
}

int clock_gettime(clockid_t which, struct timespec *now) {
    if (!real_gettime)
        real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real_gettime(which, now);
    if (answer == 0 && ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (to)
        *to = exact.tv_sec;
    return exact.tv_sec;
}
