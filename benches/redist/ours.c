/* One process of ours: ours PROGRAM RANK SIZE JOB VERSIONS SHAPE... Prints a time for each version of each shape in turn, in nanoseconds: at
 * the source when it begins to export, at the target when it has read. The array of the first shape is `field0`. */
#include "exoskel.h"
#include "jobs.h"

static void must(int is_good) {
    if (!is_good) {
        fprintf(stderr, "%s\n", exoskel_error());
        exit(1);
    }
}

static exoskel_array *field_of(exoskel_member *me, const job *one, int is_source, int number) {
    int64_t shape[] = {one->rows, one->columns}, target[] = {target_rows(one), target_columns(one)};
    const char *sharing = one->kind == CYCLIC ? "cyclic(64),cyclic(64)" : "*,block";
    char name[32];
    snprintf(name, sizeof name, "field%d", number);
    exoskel_array *field;
    must(!exoskel_array_of(me, name, EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, is_source ? shape : target,
                           is_source ? "block,*" : sharing, is_source ? NULL : one->grid, NULL, &field));
    return field;
}

int main(int count, char **words) {
    if (count < 7) return 2;
    int is_source = !strcmp(words[1], "source"), rank = atoi(words[2]), size = atoi(words[3]), versions = atoi(words[5]);
    exoskel_member *me;
    exoskel_array *ready;
    must(!exoskel_attach(words[1], size, rank, &me));
    /* A barrier: the targets say that they wait. */
    const int64_t all = size;
    must(!exoskel_array_of(me, "ready", EXOSKEL_INT8, EXOSKEL_ORDER_C, 1, &all, is_source ? "replicated" : "block", NULL, NULL, &ready));
    for (int number = 0; number < count - 6; number++) {
        job one = job_of(words[4], size, words[6 + number]);
        exoskel_array *field = field_of(me, &one, is_source, number);
        for (int version = 0; version < versions; version++) {
            if (is_source) {
                double *cells = exoskel_write(field);
                must(cells != NULL);
                fill(&one, rank, version, cells);
                must(exoskel_read(ready) && !exoskel_done(ready));
                printf("%lld\n", now());
                must(!exoskel_done(field));
            } else {
                must(exoskel_write(ready) && !exoskel_done(ready));
                const double *cells = exoskel_read(field);
                must(cells != NULL);
                printf("%lld\n", now());
                if (!is_right(&one, rank, version, cells)) {
                    fprintf(stderr, "got other elements than expected\n");
                    return 3;
                }
                must(!exoskel_done(field));
            }
        }
    }
    return exoskel_leave(me, NULL);
}
