/* What is redistributed, in all the programs of this folder: a matrix in blocks of rows, to
 *   columns: blocks of columns;
 *   cyclic: squares of 64 in turn, over a grid of processes;
 *   centre: the middle quarter of it, in blocks of columns.
 * The element of a row and a column is `row * columns + column + version`. */
#ifndef JOBS_H
#define JOBS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK 64

typedef enum { COLUMNS, CYCLIC, CENTRE } job_kind;

typedef struct {
    job_kind kind;
    int64_t rows, columns;
    /* Processes at each end, and their grid in the target of `cyclic`. */
    int size, grid[2];
} job;

static inline long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* A job of a kind, over so many processes at each end, of ROWSxCOLUMNS or of a square. */
static inline job job_of(const char *kind, int size, const char *shape) {
    job one = {COLUMNS, 0, 0, size, {1, size}};
    if (!strcmp(kind, "cyclic")) one.kind = CYCLIC;
    if (!strcmp(kind, "centre")) one.kind = CENTRE;
    char *rest;
    one.rows = strtoll(shape, &rest, 10);
    one.columns = *rest == 'x' ? atoll(rest + 1) : one.rows;
    if (one.kind == CYCLIC)
        /* As even as it can be, more processes for rows. */
        for (int below = 1; below * below <= size; below++)
            if (size % below == 0) {
                one.grid[0] = size / below;
                one.grid[1] = below;
            }
    return one;
}

/* The target's whole shape. */
static inline int64_t target_rows(const job *one) { return one->kind == CENTRE ? one->rows / 2 : one->rows; }
static inline int64_t target_columns(const job *one) { return one->kind == CENTRE ? one->columns / 2 : one->columns; }

/* How much of an axis a process of the target has. */
static inline int64_t own_rows(const job *one) { return target_rows(one) / one->grid[0]; }
static inline int64_t own_columns(const job *one) { return target_columns(one) / one->grid[1]; }

/* The index of the source's matrix that a process of the target has at a place of its own, on a blockwise or a cyclic axis. */
static inline int64_t global_index(const job *one, int axis, int rank, int64_t place) {
    int64_t length = axis ? one->columns : one->rows, own = axis ? own_columns(one) : own_rows(one);
    int coordinate = axis ? rank % one->grid[1] : rank / one->grid[1];
    if (one->kind == CYCLIC) return (place / BLOCK * one->grid[axis] + coordinate) * BLOCK + place % BLOCK;
    return coordinate * own + place + (one->kind == CENTRE ? length / 4 : 0);
}

/* Fills a process's block of the source's rows. */
static inline void fill(const job *one, int rank, int version, double *cells) {
    int64_t own = one->rows / one->size;
    for (int64_t row = 0; row < own; row++)
        for (int64_t column = 0; column < one->columns; column++)
            cells[row * one->columns + column] = (double)(rank * own + row) * one->columns + column + version;
}

/* Whether each element is there, in a process of the target. */
static inline int is_right(const job *one, int rank, int version, const double *cells) {
    int64_t rows = own_rows(one), columns = own_columns(one), wrong = 0;
    for (int64_t row = 0; row < rows; row++) {
        double begin = (double)global_index(one, 0, rank, row) * one->columns + version;
        const double *line = cells + row * columns;
        /* Runs whose indices follow each other: the whole row, or a square of it. */
        int64_t run = one->kind == CYCLIC ? BLOCK : columns;
        for (int64_t from = 0; from < columns; from += run) {
            double first = begin + global_index(one, 1, rank, from);
            for (int64_t at = from; at < from + run; at++) wrong += line[at] != first + (at - from);
        }
    }
    return !wrong;
}

#endif
