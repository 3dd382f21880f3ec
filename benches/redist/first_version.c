/* One process of two programs that exchange one version as soon as they can: first_version PROGRAM RANK SIZE LENGTH. Prints nanoseconds: when
 * it has attached, and when it has exported or read. The element of a row and a column is `row * LENGTH + column`. */
#include "exoskel.h"
#include "jobs.h"

static void must(int is_good) {
    if (!is_good) {
        fprintf(stderr, "%s\n", exoskel_error());
        exit(1);
    }
}

int main(int count, char **words) {
    if (count != 5) return 2;
    int is_source = !strcmp(words[1], "source");
    int64_t length = atoll(words[4]), shape[] = {length, length}, first[2], own[2], wrong = 0;
    exoskel_member *me;
    exoskel_array *field;
    must(!exoskel_attach(words[1], atoi(words[3]), atoi(words[2]), &me));
    long long attached = now();
    must(!exoskel_array_of(me, "field0", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, is_source ? "block,*" : "*,block", NULL, NULL, &field));
    for (int axis = 0; axis < 2; axis++) must(!exoskel_extent(field, axis, &first[axis], &own[axis]));
    double *cells = is_source ? exoskel_write(field) : (double *)exoskel_read(field);
    must(cells != NULL);
    long long taken = now();
    for (int64_t row = 0; row < own[0]; row++)
        for (int64_t column = 0; column < own[1]; column++) {
            double *cell = &cells[row * own[1] + column], expected = (double)(first[0] + row) * length + first[1] + column;
            if (is_source) *cell = expected;
            wrong += *cell != expected;
        }
    must(!exoskel_done(field));
    printf("%lld\n%lld\n", attached, is_source ? now() : taken);
    if (wrong) {
        fprintf(stderr, "got other elements than expected\n");
        return 3;
    }
    return exoskel_leave(me, NULL);
}
