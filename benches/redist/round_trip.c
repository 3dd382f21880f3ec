/* One number there and back: round_trip futex TIMES, between two processes that wait in the kernel; or round_trip PROGRAM TIMES, one of the
 * two of ours. Prints the nanoseconds of each. */
#include <errno.h>
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "exoskel.h"
#include "jobs.h"

static void say(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void hear(uint32_t *word, uint32_t value) {
    uint32_t seen;
    while ((seen = __atomic_load_n(word, __ATOMIC_ACQUIRE)) != value) syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static int futexes(int times) {
    uint32_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) return 2;
    pid_t other = fork();
    for (int turn = 1; turn <= times; turn++) {
        if (!other) {
            hear(words, turn);
            say(words + 32, turn);
            continue;
        }
        long long begin = now();
        say(words, turn);
        hear(words + 32, turn);
        printf("%lld\n", now() - begin);
    }
    if (!other) _exit(0);
    return waitpid(other, NULL, 0) == other ? 0 : 2;
}

static double number(exoskel_array *array, int writes, double value) {
    double *cell = writes ? exoskel_write(array) : (double *)exoskel_read(array);
    if (!cell) {
        fprintf(stderr, "%s\n", exoskel_error());
        exit(1);
    }
    if (writes) *cell = value;
    value = *cell;
    if (exoskel_done(array)) exit(1);
    return value;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    int times = atoi(words[2]), begins = !strcmp(words[1], "there");
    if (!strcmp(words[1], "futex")) return futexes(times);
    const int64_t shape[] = {1};
    exoskel_member *me;
    exoskel_array *given, *taken;
    if (exoskel_attach(words[1], 1, 0, &me)) return 2;
    if (exoskel_array_of(me, "given", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 1, shape, "block", NULL, NULL, &given)) return 2;
    if (exoskel_array_of(me, "taken", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 1, shape, "block", NULL, NULL, &taken)) return 2;
    for (int turn = 0; turn < times; turn++) {
        if (!begins) {
            number(given, 1, number(taken, 0, 0));
            continue;
        }
        long long begin = now();
        number(given, 1, turn);
        if (number(taken, 0, 0) != turn) return 3;
        printf("%lld\n", now() - begin);
    }
    return exoskel_leave(me, NULL);
}
