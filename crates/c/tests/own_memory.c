#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "exoskel.h"

/* One process with an array in memory of its own: own_memory PROGRAM RANK SIZE VERSIONS. A source waits for a line before each version. What
 * goes wrong is printed. */
int main(int count, char **words) {
    if (count != 5) return 2;
    int is_source = !strcmp(words[1], "source"), versions = atoi(words[4]);
    const int64_t shape[] = {2048, 1024};
    int64_t local[2], first[2], owned[2];
    exoskel_member *me;
    exoskel_array *field;
    char line[8];
    int size = atoi(words[3]), status = 0;
    double *own = calloc(2048 * 1024 / (size_t)size, sizeof *own);
    if (!own || exoskel_attach(words[1], size, atoi(words[2]), &me)) return 2;
    if (exoskel_array_in(me, "field", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, is_source ? "block,*" : "*,block", NULL, NULL, own, &field)) return 2;
    if (exoskel_local_shape(field, local)) return 2;
    for (int axis = 0; axis < 2; axis++)
        if (exoskel_extent(field, axis, &first[axis], &owned[axis])) return 2;
    for (int version = 0; version < versions && !status; version++) {
        if (is_source && !fgets(line, sizeof line, stdin)) break;
        if (is_source && exoskel_write(field) != own) status = 3;
        if (!is_source && exoskel_read(field) != own) status = 3;
        for (int64_t row = 0; row < local[0] && !status; row++)
            for (int64_t column = 0; column < local[1]; column++) {
                double *cell = &own[row * local[1] + column];
                double expected = ((double)first[0] + row) * 1024 + first[1] + column + version;
                if (is_source) *cell = expected;
                else if (*cell != expected) status = 4;
            }
        if (!status && exoskel_done(field)) status = 3;
        /* What was exported is out of this memory. */
        if (is_source && !status) memset(own, 0, sizeof *own * (size_t)(local[0] * local[1]));
    }
    if (status == 3) printf("%s\n", exoskel_error());
    exoskel_leave(me, NULL);
    free(own);
    return status;
}
