/* Arrays between parallel programs: the same as exoskel.Member in Python (docs/guide/coupling.md).
 *
 * Functions return 0, or -1 (a pointer: NULL) on error; exoskel_error() says what it was. A member and its arrays belong to
 * one thread at a time. Nothing of MPI is called, and no thread is started.
 */
#ifndef EXOSKEL_H
#define EXOSKEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct exoskel_member exoskel_member;
typedef struct exoskel_array exoskel_array;

/* Elements, in the machine's byte order. */
typedef enum {
    EXOSKEL_INT8 = 1,
    EXOSKEL_INT16 = 2,
    EXOSKEL_INT32 = 3,
    EXOSKEL_INT64 = 4,
    EXOSKEL_UINT8 = 5,
    EXOSKEL_UINT16 = 6,
    EXOSKEL_UINT32 = 7,
    EXOSKEL_UINT64 = 8,
    EXOSKEL_FLOAT32 = 9,
    EXOSKEL_FLOAT64 = 10,
    EXOSKEL_COMPLEX64 = 11,
    EXOSKEL_COMPLEX128 = 12
} exoskel_type;

/* Which axis is contiguous in memory: the last one (C) or the first one (Fortran). */
typedef enum { EXOSKEL_ORDER_C = 0, EXOSKEL_ORDER_FORTRAN = 1 } exoskel_order;

/* Attaches process `rank` of `size` of a program to the keeper that EXOSKEL_KEEPER names, or the account's own. */
int exoskel_attach(const char *program, int size, int rank, exoskel_member **member);

/* Describes an array, and gets zeroed memory for this process's part of it. Each process of the program gives the same layout.
 *
 * shape: `axes` lengths. sharing: how each axis is shared out, with commas between: "block", "block(k)", "cyclic", "cyclic(k)",
 * "*" or "replicated". grid: processes for each axis, or NULL for as even as it can be. halo: cells around each process's block
 * for each axis, or NULL for none.
 */
int exoskel_array_of(exoskel_member *member, const char *name, exoskel_type type, exoskel_order order, int axes,
                     const int64_t *shape, const char *sharing, const int *grid, const int64_t *halo,
                     exoskel_array **array);

/* The same where indices belong to processes in no regular way, as the cells of an unstructured mesh do: `sharing` has "indices" for such
 * an axis. There counts[axis] is the number of this process's own indices, and indices[axis] points to them: each once, counted
 * from 0, in the order in which the part has them in memory. Of other axes neither is looked at. Both are copied. A source has
 * each index once; a target may list what others list as well. `memory` is as in exoskel_array_in, or NULL. */
int exoskel_array_indices(exoskel_member *member, const char *name, exoskel_type type, exoskel_order order, int axes,
                          const int64_t *shape, const char *sharing, const int *grid, const int64_t *counts,
                          const int64_t *const *indices, void *memory, exoskel_array **array);

/* As exoskel_array_of, with the array's contents in memory of your own: this process's part, its halo included, in the layout's order and
 * without gaps. It stays yours to free, after exoskel_leave. exoskel_write and exoskel_read return it. What is read is copied straight
 * into it; exoskel_done copies what was written out of it, after which it can be changed again. Two arrays may have some memory in
 * common only if no connection ends in either: else this is an error that names both. */
int exoskel_array_in(exoskel_member *member, const char *name, exoskel_type type, exoskel_order order, int axes,
                     const int64_t *shape, const char *sharing, const int *grid, const int64_t *halo, void *memory,
                     exoskel_array **array);

/* The lengths of this process's part, its halo included, into `axes` places. */
int exoskel_local_shape(const exoskel_array *array, int64_t *shape);

/* The first index of the whole array that this process owns on an axis, and how many there are in that block: the first
 * block where there are several. A part without elements has count 0. Axes and indices count from 0, also for programs in
 * Fortran: axis 0 is the first one that `shape` names. */
int exoskel_extent(const exoskel_array *array, int axis, int64_t *first, int64_t *count);

/* Waits until the last version was taken, and gives memory to write to. exoskel_done exports it as the next version. */
void *exoskel_write(exoskel_array *array);

/* Waits for the next version, and gives memory to read it from. It stays as it is until exoskel_done. */
const void *exoskel_read(exoskel_array *array);

/* Ends a write or a read. */
int exoskel_done(exoskel_array *array);

/* Leaves: in good order, or for an error that is told to the other programs (NULL: none). Frees the member and its arrays,
 * whose memory must not be used any more. */
int exoskel_leave(exoskel_member *member, const char *error);

/* The version of the library that the program has found. A keeper of another one may refuse it, and then says both. */
const char *exoskel_version(void);

/* What the last error in this thread was, for printf("%s\n", ...); exoskel.f90 has exoskel_error_text for it. Valid until the
 * next call in this thread. */
const char *exoskel_error(void);

#ifdef __cplusplus
}
#endif

#endif
