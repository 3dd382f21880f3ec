/* One process of ours: ours PROGRAM RANK SIZE JOB VERSIONS SHAPES... Each word of shapes is one, or some with "+" between that are exported
 * at once; a shape with ",own" at its end is in memory of the program's own. Prints a time for each version of each word in turn, in
 * nanoseconds: at the source when it begins to export, at the target when it has read. Nobody looks at what has come, or fills the
 * next version, before all have read: who is early would take the processors of those who aren't. The array of the first shape is `field0`. */
#include "exoskel.h"
#include "jobs.h"

#define AT_ONCE_MAX 8

typedef struct {
    job one;
    exoskel_array *array;
} field;

static void must(int is_good) {
    if (!is_good) {
        fprintf(stderr, "%s\n", exoskel_error());
        exit(1);
    }
}

static field field_of(exoskel_member *me, const job *one, int is_source, int number, int is_own) {
    int64_t shape[] = {one->rows, one->columns}, target[] = {target_rows(one), target_columns(one)};
    const char *sharing = is_source ? "block,*" : one->kind == CYCLIC ? "cyclic(64),cyclic(64)" : "*,block";
    char name[32];
    snprintf(name, sizeof name, "field%d", number);
    field made = {*one, NULL};
    void *own = NULL;
    if (is_own) {
        size_t bytes = (is_source ? one->rows / one->size * one->columns : own_rows(one) * own_columns(one)) * sizeof(double);
        own = malloc(bytes);
        if (!own) exit(2);
        memset(own, 0, bytes);
        must(!exoskel_array_in(me, name, EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, is_source ? shape : target, sharing,
                               is_source ? NULL : one->grid, NULL, own, &made.array));
    } else {
        must(!exoskel_array_of(me, name, EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, is_source ? shape : target, sharing,
                               is_source ? NULL : one->grid, NULL, &made.array));
    }
    return made;
}

/* The arrays by which processes wait for each other. */
typedef struct {
    exoskel_array *filled, *ready, *read, *all_read;
} meeting;

static void say(exoskel_array *array) { must(exoskel_write(array) && !exoskel_done(array)); }
static void hear(exoskel_array *array) { must(exoskel_read(array) && !exoskel_done(array)); }

/* A barrier, as the peers have it: all sources say that they have filled theirs, then all targets that they wait. */
static void meet(const meeting *with, int is_source) {
    if (is_source) say(with->filled);
    hear(is_source ? with->ready : with->filled);
    if (!is_source) say(with->ready);
}

static void export_all(field *fields, int count, int rank, int version, const meeting *with) {
    for (int at = 0; at < count; at++) {
        double *cells = exoskel_write(fields[at].array);
        must(cells != NULL);
        fill(&fields[at].one, rank, version, cells);
    }
    meet(with, 1);
    printf("%lld\n", now());
    for (int at = 0; at < count; at++) must(!exoskel_done(fields[at].array));
    hear(with->all_read);
}

static int import_all(field *fields, int count, int rank, int version, const meeting *with) {
    const double *cells[AT_ONCE_MAX];
    int are_right = 1;
    meet(with, 0);
    for (int at = 0; at < count; at++) must((cells[at] = exoskel_read(fields[at].array)) != NULL);
    printf("%lld\n", now());
    say(with->read);
    hear(with->all_read);
    for (int at = 0; at < count; at++) {
        are_right &= is_right(&fields[at].one, rank, version, cells[at]);
        must(!exoskel_done(fields[at].array));
    }
    return are_right;
}

/* A byte of each who says something, for all who hear it. */
static exoskel_array *signal_of(exoskel_member *me, const char *name, int64_t size, int is_said) {
    exoskel_array *made;
    must(!exoskel_array_of(me, name, EXOSKEL_INT8, EXOSKEL_ORDER_C, 1, &size, is_said ? "block" : "replicated", NULL, NULL, &made));
    return made;
}

int main(int count, char **words) {
    if (count < 7) return 2;
    int is_source = !strcmp(words[1], "source"), rank = atoi(words[2]), size = atoi(words[3]), versions = atoi(words[5]), number = 0;
    exoskel_member *me;
    meeting with;
    must(!exoskel_attach(words[1], size, rank, &me));
    with.filled = signal_of(me, "filled", size, is_source);
    with.ready = signal_of(me, "ready", size, !is_source);
    with.read = is_source ? NULL : signal_of(me, "read", size, 1);
    with.all_read = signal_of(me, "all_read", size, 0);
    for (int word = 6; word < count; word++) {
        field fields[AT_ONCE_MAX];
        int at_once = 0;
        for (char *shape = strtok(words[word], "+"); shape; shape = strtok(NULL, "+")) {
            if (at_once == AT_ONCE_MAX) return 2;
            job one = job_of(words[4], size, shape);
            fields[at_once++] = field_of(me, &one, is_source, number++, strstr(shape, ",own") != NULL);
        }
        for (int version = 0; version < versions; version++) {
            if (is_source) {
                export_all(fields, at_once, rank, version, &with);
            } else if (!import_all(fields, at_once, rank, version, &with)) {
                fprintf(stderr, "got other elements than expected\n");
                return 3;
            }
        }
    }
    return exoskel_leave(me, NULL);
}
