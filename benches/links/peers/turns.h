/* Turns as `benches/links/turns.py` describes them, for lanes in C. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static char *filled(size_t bytes) {
    char *memory = malloc(bytes ? bytes : 1);
    if (!memory) fail("out of memory");
    for (size_t index = 0; index < bytes; index++) memory[index] = (char)((index * 31) >> 3);
    return memory;
}

static void take_turns(const char *lanes, void (*turn)(const char *, size_t, long)) {
    char line[256], lane[128];
    size_t bytes;
    long count;
    puts(lanes);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%127s %zu %ld", lane, &bytes, &count) != 3) {
            puts("failed got no LANE BYTES COUNT");
        } else {
            double start = seconds_now();
            turn(lane, bytes, count);
            printf("%.9f\n", seconds_now() - start);
        }
        fflush(stdout);
    }
}
