// Preloaded into one of two Envoys, so that their clocks differ: the wall clock is AHEAD_MS ahead, all
// other clocks are as they are.
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) {
    now->tv_sec += AHEAD_MS / 1000;
    now->tv_nsec += AHEAD_MS % 1000 * 1000000L;
    if (now->tv_nsec >= 1000000000L) {
      now->tv_sec += 1;
      now->tv_nsec -= 1000000000L;
    }
  }
  return result;
}
