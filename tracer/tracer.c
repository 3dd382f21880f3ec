/* Messages of an MPI program, written down call by call.
 *
 * Loaded before the MPI library (LD_PRELOAD), this has the names of MPI's functions for C; each one does what it says through that of the
 * library, and afterwards appends one record to the file of its rank in the folder EXOSKEL_TRACE. `exoskel sim pack` makes one trace of such a folder.
 * README.md has what is and what isn't written down.
 *
 * Fortran's functions are the library's own. They end in those for C, by MPI_ names (MPICH: mpif.h and the module mpi), PMPI_ names
 * (Open MPI) or some of each (MPICH: mpi_f08). So this has the PMPI_ names as well, and finds those of the library behind them.
 *
 * The file: 32 bytes of head, then records of 48 bytes, as below, in the machine's byte order, which has to be little endian. It is
 * whole after each write, so a program that dies leaves what it did until some calls before. Beside it is a text with a line for each communicator of
 * the rank: the members, counted in MPI_COMM_WORLD.
 */
#define _GNU_SOURCE
#include <mpi.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum operation {
    OP_INIT = 0, OP_SEND = 1, OP_ISEND = 2, OP_RECV = 3, OP_IRECV = 4, OP_WAIT = 5, OP_WAITALL = 6, OP_BARRIER = 16,
    OP_BCAST = 17, OP_REDUCE = 18, OP_ALLREDUCE = 19, OP_ALLTOALL = 20, OP_ALLTOALLV = 21, OP_GATHER = 22, OP_ALLGATHER = 23,
    OP_SCATTER = 24, OP_REDUCE_SCATTER = 25, OP_SCAN = 26, OP_FINALIZE = 31
};

struct head {
    char magic[8];
    uint32_t rank, ranks;
    uint64_t start_ns; /* since 1970 */
    uint64_t reserved;
};

struct record {
    uint64_t entry_ns; /* since the head's start */
    uint64_t duration_ns;
    uint64_t gap_ns; /* processor time of this thread since the call before */
    uint64_t bytes;
    int32_t peer; /* in MPI_COMM_WORLD; -1: nobody, or nobody knows yet */
    int32_t tag;
    uint32_t request;
    uint8_t operation, communicator;
    uint16_t reserved;
};

_Static_assert(sizeof(struct head) == 32 && sizeof(struct record) == 48, "the file's layout");
_Static_assert(offsetof(struct record, tag) == offsetof(struct record, peer) + sizeof(int32_t), "both are written at once");

enum { BUFFERED = 4096, COMMUNICATORS_MAX = 256, REQUESTS_MAX = 1 << 20 };

/* A request that somebody may wait for. */
struct request {
    MPI_Request handle;
    uint32_t number;     /* 0: this place is free */
    uint64_t record;     /* which record began it */
    int open;            /* its sender or its tag is not known yet */
    int persistent;      /* an operation, begun by MPI_Start; else 0 */
    struct record begin; /* of a persistent one */
    MPI_Comm comm;       /* whose ranks its sender is counted in */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1, communicators_file = -1, world_rank, world_size;
static uint64_t start_ns;
static struct record buffer[BUFFERED];
static uint64_t written, buffered;
static uint32_t requests_begun;
static struct request *requests;
static size_t requests_room, requests_used;
static struct { int size; int *members; } communicators[COMMUNICATORS_MAX];
static int communicators_known;
static struct { MPI_Comm handle; int index; } handles[COMMUNICATORS_MAX];
static int handles_known;
/* Of each thread: what its clock said when the last call ended, and the gap that calls without a record have left. */
static __thread uint64_t cpu_last, gap_left;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Nothing goes on being written; the program does. */
static void give_up(const char *what) {
    if (file >= 0) {
        fprintf(stderr, "exoskel tracer: rank %d: %s: %s; its trace ends here\n", world_rank, what, strerror(errno));
        close(file);
        file = -1;
    }
}

static void write_all(int to, const void *bytes, size_t length) {
    const char *next = bytes;
    while (length > 0) {
        ssize_t count = write(to, next, length);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) { give_up("writing"); return; }
        next += count;
        length -= (size_t)count;
    }
}

static void flush(void) {
    if (file >= 0 && buffered > 0) write_all(file, buffer, buffered * sizeof *buffer);
    written += buffered;
    buffered = 0;
}

/* --- a call, from its entry to its record ----------------------------------------------------------- */

struct call {
    uint64_t entry_ns, gap_ns;
};

static struct call enter(void) {
    uint64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    struct call call = { clock_ns(CLOCK_REALTIME) - start_ns, gap_left + (cpu - cpu_last) };
    return call;
}

/* Its time in the call doesn't count, the computation before it does. */
static void leave_unrecorded(const struct call *call) {
    gap_left = call->gap_ns;
    cpu_last = clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* The number of the record. With the lock. */
static uint64_t append(const struct call *call, struct record record) {
    uint64_t now = clock_ns(CLOCK_REALTIME) - start_ns;
    record.entry_ns = call->entry_ns;
    record.duration_ns = now > call->entry_ns ? now - call->entry_ns : 0;
    record.gap_ns = call->gap_ns;
    if (buffered == BUFFERED) flush();
    buffer[buffered++] = record;
    return written + buffered - 1;
}

static void leave(void) {
    gap_left = 0;
    cpu_last = clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* The sender and the tag of a message turned up after its record was made. With the lock. */
static void name_message(uint64_t number, int32_t peer, int32_t tag) {
    if (number >= written) {
        buffer[number - written].peer = peer;
        buffer[number - written].tag = tag;
    } else if (file >= 0) {
        int32_t name[] = { peer, tag };
        off_t place = (off_t)(sizeof(struct head) + number * sizeof(struct record) + offsetof(struct record, peer));
        if (pwrite(file, name, sizeof name, place) != sizeof name) give_up("writing");
    }
}

/* --- whose call it is --------------------------------------------------------------------------------- */

/* Where the code is that has the library's functions for Fortran. */
static struct { uintptr_t first, end; } fortran;
/* Whether this thread is within a traced call: what the library calls for it is no call of the program. */
static __thread int inside;

static int find_object(struct dl_phdr_info *object, size_t size, void *address) {
    (void)size;
    uintptr_t first = UINTPTR_MAX, end = 0;
    for (int index = 0; index < object->dlpi_phnum; index++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[index];
        if (segment->p_type != PT_LOAD) continue;
        uintptr_t begin = object->dlpi_addr + segment->p_vaddr;
        if (begin < first) first = begin;
        if (begin + segment->p_memsz > end) end = begin + segment->p_memsz;
    }
    if ((uintptr_t)address < first || (uintptr_t)address >= end) return 0;
    fortran.first = first;
    fortran.end = end;
    return 1;
}

/* Whether a call by a PMPI_ name is the program's: it is if it comes out of the functions for Fortran. Other parts of a library (ROMIO, for
 * files) and other tools use these names for what is theirs. */
static int from_fortran(void *caller) {
    if (fortran.end == 0) {
        /* The first such call of a program begins MPI, which only the program does: where the functions are loaded for it alone, they are found by that. */
        void *function = dlsym(RTLD_DEFAULT, "mpi_send_");
        if (function || start_ns == 0) dl_iterate_phdr(find_object, function ? function : caller);
        else fortran.end = 1;
    }
    return (uintptr_t)caller >= fortran.first && (uintptr_t)caller < fortran.end;
}

static void *find_in_library(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) {
        fprintf(stderr, "exoskel tracer: got no %s from the MPI library, expected the library that this was made for: make it with the program's mpicc\n", name);
        abort();
    }
    return function;
}

/* Begins the function that traces MPI_name, and makes both names lead there once for each call of the program. */
#define TRACED(name, parameters, arguments) \
    static __typeof__(PMPI_##name) *library_##name; \
    __attribute__((constructor)) static void find_##name(void) { library_##name = find_in_library("PMPI_" #name); } \
    static int traced_##name parameters; \
    static int outermost_##name parameters { \
        inside = 1; \
        int result = traced_##name arguments; \
        inside = 0; \
        return result; \
    } \
    int MPI_##name parameters { return inside ? library_##name arguments : outermost_##name arguments; } \
    int PMPI_##name parameters { \
        return inside || !from_fortran(__builtin_return_address(0)) ? library_##name arguments : outermost_##name arguments; \
    } \
    static int traced_##name parameters

/* --- communicators and ranks ------------------------------------------------------------------------ */

/* A rank of a communicator as one of MPI_COMM_WORLD; -1 for none. */
static int world(MPI_Comm comm, int rank) {
    if (rank == MPI_PROC_NULL || rank == MPI_ANY_SOURCE || rank == MPI_ROOT) return -1;
    if (comm == MPI_COMM_WORLD) return rank;
    MPI_Group group, all;
    int found = -1, between = 0;
    PMPI_Comm_test_inter(comm, &between);
    if (between) PMPI_Comm_remote_group(comm, &group);
    else PMPI_Comm_group(comm, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &all);
    PMPI_Group_translate_ranks(group, 1, &rank, all, &found);
    PMPI_Group_free(&group);
    PMPI_Group_free(&all);
    return found == MPI_UNDEFINED ? -1 : found;
}

/* The number of a communicator, which is written down when it is new; -1 if it can't be. With the lock. */
static int number_of(MPI_Comm comm) {
    for (int known = 0; known < handles_known; known++)
        if (handles[known].handle == comm) return handles[known].index;
    int between = 0, size = 0;
    PMPI_Comm_test_inter(comm, &between);
    if (between || handles_known == COMMUNICATORS_MAX) return -1;
    PMPI_Comm_size(comm, &size);
    int *ranks = calloc(2 * (size_t)size, sizeof *ranks), *members = ranks + size;
    if (!ranks) return -1;
    for (int rank = 0; rank < size; rank++) ranks[rank] = rank;
    MPI_Group group, all;
    PMPI_Comm_group(comm, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &all);
    PMPI_Group_translate_ranks(group, size, ranks, all, members);
    PMPI_Group_free(&group);
    PMPI_Group_free(&all);
    int index = 0;
    /* Copies of a communicator have the same members: one line is enough. */
    while (index < communicators_known && (communicators[index].size != size
            || memcmp(communicators[index].members, members, (size_t)size * sizeof *members)))
        index++;
    if (index == communicators_known) {
        for (int member = 0; member < size; member++)
            if (members[member] == MPI_UNDEFINED) { free(ranks); return -1; }
        communicators[index].size = size;
        communicators[index].members = members;
        communicators_known++;
        char word[16];
        for (int member = 0; member < size; member++) {
            int length = snprintf(word, sizeof word, "%d%c", members[member], member + 1 < size ? ' ' : '\n');
            write_all(communicators_file, word, (size_t)length);
        }
    } else free(ranks);
    handles[handles_known].handle = comm;
    handles[handles_known].index = index;
    handles_known++;
    return index;
}

/* The same for a message, whose ranks are counted in MPI_COMM_WORLD anyway: that one for those without a number. With the lock. */
static uint8_t number_for_message(MPI_Comm comm) {
    int number = number_of(comm);
    return number < 0 ? 0 : (uint8_t)number;
}

static void forget_communicator(MPI_Comm comm) {
    pthread_mutex_lock(&lock);
    for (int known = 0; known < handles_known; known++)
        if (handles[known].handle == comm) handles[known] = handles[--handles_known];
    pthread_mutex_unlock(&lock);
}

/* --- requests --------------------------------------------------------------------------------------- */

static size_t hash(MPI_Request handle) {
    uint64_t mixed = 0;
    memcpy(&mixed, &handle, sizeof handle < sizeof mixed ? sizeof handle : sizeof mixed);
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9u;
    return (size_t)(mixed ^ (mixed >> 32));
}

static struct request *find(MPI_Request handle) {
    if (requests_room == 0 || handle == MPI_REQUEST_NULL) return NULL;
    for (size_t place = hash(handle);; place++) {
        struct request *one = &requests[place & (requests_room - 1)];
        if (one->number == 0) return NULL;
        if (one->handle == handle) return one;
    }
}

static void put(struct request request) {
    size_t place = hash(request.handle);
    while (requests[place & (requests_room - 1)].number != 0) place++;
    requests[place & (requests_room - 1)] = request;
}

static void remember(struct request request) {
    struct request *known = find(request.handle);
    /* A handle that is used again: somebody freed it without waiting. */
    if (known) { *known = request; return; }
    if (requests_used == REQUESTS_MAX) return;
    if (2 * (requests_used + 1) > requests_room) {
        struct request *old = requests;
        size_t room = requests_room;
        struct request *larger = calloc(room ? 2 * room : 64, sizeof *larger);
        if (!larger) return;
        requests = larger;
        requests_room = room ? 2 * room : 64;
        for (size_t place = 0; place < room; place++)
            if (old[place].number != 0) put(old[place]);
        free(old);
    }
    put(request);
    requests_used++;
}

static void forget(struct request *known) {
    size_t hole = (size_t)(known - requests);
    known->number = 0;
    requests_used--;
    /* What stands behind it may have been pushed there by it. */
    for (size_t place = (hole + 1) & (requests_room - 1); requests[place].number != 0; place = (place + 1) & (requests_room - 1)) {
        struct request one = requests[place];
        requests[place].number = 0;
        put(one);
    }
}

/* --- records of each kind --------------------------------------------------------------------------- */

static uint64_t bytes_of(long long count, MPI_Datatype type) {
    int size = 0;
    if (count > 0 && type != MPI_DATATYPE_NULL) PMPI_Type_size(type, &size);
    return count > 0 && size > 0 ? (uint64_t)count * (uint64_t)size : 0;
}

/* A message that nobody waits for separately. */
static void message(const struct call *call, int operation, long long count, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
    if (file < 0 || peer == MPI_PROC_NULL) { leave_unrecorded(call); return; }
    struct record record = { .bytes = bytes_of(count, type), .peer = world(comm, peer), .tag = tag, .operation = (uint8_t)operation };
    pthread_mutex_lock(&lock);
    record.communicator = number_for_message(comm);
    append(call, record);
    pthread_mutex_unlock(&lock);
    leave();
}

/* Whether a message that comes by these is known only when it is there. */
static int is_open(int peer, int tag) {
    return peer == MPI_ANY_SOURCE || tag == MPI_ANY_TAG;
}

/* Which message it was. */
static void learn(int result, const MPI_Status *status, int *peer, int *tag) {
    if (result != MPI_SUCCESS || *peer == MPI_PROC_NULL) return;
    *peer = status->MPI_SOURCE;
    *tag = status->MPI_TAG;
}

/* A message that somebody waits for by that handle. The number of its request. */
static uint32_t begun(const struct call *call, int operation, long long count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request handle) {
    if (file < 0 || peer == MPI_PROC_NULL) { leave_unrecorded(call); return 0; }
    struct record record = { .bytes = bytes_of(count, type), .peer = world(comm, peer), .tag = tag, .operation = (uint8_t)operation };
    pthread_mutex_lock(&lock);
    record.request = ++requests_begun;
    record.communicator = number_for_message(comm);
    struct request request = { .handle = handle, .number = record.request, .open = is_open(peer, tag), .comm = comm };
    request.record = append(call, record);
    if (handle != MPI_REQUEST_NULL) remember(request);
    pthread_mutex_unlock(&lock);
    leave();
    return record.request;
}

/* A persistent message: it is only prepared. */
static void prepared(int operation, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request handle) {
    if (file < 0 || peer == MPI_PROC_NULL) return;
    struct request request = { .handle = handle, .open = is_open(peer, tag), .persistent = operation, .comm = comm };
    request.begin = (struct record){ .bytes = bytes_of(count, type), .peer = world(comm, peer), .tag = tag, .operation = (uint8_t)operation };
    pthread_mutex_lock(&lock);
    request.number = ++requests_begun;
    request.begin.communicator = number_for_message(comm);
    remember(request);
    pthread_mutex_unlock(&lock);
}

static void started(const struct call *call, MPI_Request handle) {
    pthread_mutex_lock(&lock);
    struct request *known = find(handle);
    if (!known || file < 0) {
        pthread_mutex_unlock(&lock);
        leave_unrecorded(call);
        return;
    }
    struct record record = known->begin;
    record.request = known->number = ++requests_begun;
    known->record = append(call, record);
    pthread_mutex_unlock(&lock);
    leave();
}

/* What is known of a request that is over, before its handle is gone. */
struct ended {
    uint32_t number;
    uint64_t record;
    int open;
    MPI_Comm comm;
};

static struct ended look(MPI_Request handle) {
    struct ended ended = { 0 };
    pthread_mutex_lock(&lock);
    struct request *known = find(handle);
    if (known) {
        ended = (struct ended){ known->number, known->record, known->open, known->comm };
    }
    pthread_mutex_unlock(&lock);
    return ended;
}

/* With the lock. */
static void end(MPI_Request handle, const struct ended *ended, const MPI_Status *status) {
    struct request *known = find(handle);
    if (ended->open && status && status->MPI_SOURCE >= 0) name_message(ended->record, world(ended->comm, status->MPI_SOURCE), status->MPI_TAG);
    if (known && !known->persistent) forget(known);
}

/* One request is over. */
static void waited(const struct call *call, MPI_Request handle, const struct ended *ended, const MPI_Status *status) {
    if (file < 0 || ended->number == 0) { leave_unrecorded(call); return; }
    struct record record = { .peer = -1, .request = ended->number, .operation = OP_WAIT };
    pthread_mutex_lock(&lock);
    end(handle, ended, status);
    append(call, record);
    pthread_mutex_unlock(&lock);
    leave();
}

static void collective(const struct call *call, int operation, uint64_t bytes, int root, MPI_Comm comm) {
    if (file < 0) { leave_unrecorded(call); return; }
    struct record record = { .bytes = bytes, .peer = root, .operation = (uint8_t)operation };
    pthread_mutex_lock(&lock);
    int number = number_of(comm);
    if (number >= 0) {
        record.communicator = (uint8_t)number;
        append(call, record);
    }
    pthread_mutex_unlock(&lock);
    if (number >= 0) leave();
    else leave_unrecorded(call);
}

static uint64_t mean_bytes(const int counts[], MPI_Datatype type, MPI_Comm comm) {
    int size = 1;
    long long sum = 0;
    PMPI_Comm_size(comm, &size);
    for (int member = 0; member < size; member++) sum += counts[member];
    return bytes_of(sum, type) / (uint64_t)size;
}

static int is_root(int root, MPI_Comm comm) {
    int rank = -1;
    PMPI_Comm_rank(comm, &rank);
    return rank == root;
}

static int own_rank(MPI_Comm comm) {
    int rank = 0;
    PMPI_Comm_rank(comm, &rank);
    return rank;
}

/* --- the beginning and the end ---------------------------------------------------------------------- */

static void begin_trace(void) {
    const char *folder = getenv("EXOSKEL_TRACE");
    char path[PATH_MAX];
    PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &world_size);
    /* After this barrier, the clocks of one machine agree on when the trace begins. */
    PMPI_Barrier(MPI_COMM_WORLD);
    start_ns = clock_ns(CLOCK_REALTIME);
    PMPI_Bcast(&start_ns, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (!folder) {
        if (world_rank == 0) fprintf(stderr, "exoskel tracer: got no EXOSKEL_TRACE, expected a folder: nothing is traced\n");
        return;
    }
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/rank-%05d.communicators", folder, world_rank);
    communicators_file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    snprintf(path, sizeof path, "%s/rank-%05d.calls", folder, world_rank);
    /* Not O_APPEND: senders are written into records that are there already. */
    file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0 || communicators_file < 0) {
        fprintf(stderr, "exoskel tracer: rank %d: %s: %s; nothing is traced\n", world_rank, path, strerror(errno));
        if (file >= 0) close(file);
        file = -1;
        return;
    }
    struct head head = { "EXOCALL1", (uint32_t)world_rank, (uint32_t)world_size, start_ns, 0 };
    write_all(file, &head, sizeof head);
    cpu_last = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    struct call call = { 0, 0 };
    pthread_mutex_lock(&lock);
    number_of(MPI_COMM_WORLD);
    append(&call, (struct record){ .peer = -1, .operation = OP_INIT });
    pthread_mutex_unlock(&lock);
}

/* A program whose calls go past this tracer must not be taken for one that says nothing. */
static void tell_of_silence(void) {
    /* Beside the record of the beginning. */
    int silent = file >= 0 && written + buffered <= 1, all = 0;
    PMPI_Reduce(&silent, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (all > 0 && world_size > 1)
        fprintf(stderr, "exoskel tracer: got no message and no collective call of %d of %d ranks, expected some of each: either they say nothing, "
                "or they use functions that the tracer's README.md names as not written down\n", all, world_size);
}

static void end_trace(void) {
    struct call call = enter();
    tell_of_silence();
    pthread_mutex_lock(&lock);
    if (file >= 0) {
        append(&call, (struct record){ .peer = -1, .operation = OP_FINALIZE });
        flush();
    }
    if (file >= 0) close(file);
    if (communicators_file >= 0) close(communicators_file);
    file = communicators_file = -1;
    pthread_mutex_unlock(&lock);
}

/* --- MPI's functions -------------------------------------------------------------------------------------- */

TRACED(Init, (int *argc, char ***argv), (argc, argv)) {
    int result = library_Init(argc, argv);
    begin_trace();
    return result;
}

TRACED(Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided)) {
    int result = library_Init_thread(argc, argv, required, provided);
    begin_trace();
    return result;
}

TRACED(Finalize, (void), ()) {
    end_trace();
    return library_Finalize();
}

TRACED(Comm_free, (MPI_Comm *comm), (comm)) {
    forget_communicator(*comm);
    return library_Comm_free(comm);
}

TRACED(Comm_disconnect, (MPI_Comm *comm), (comm)) {
    forget_communicator(*comm);
    return library_Comm_disconnect(comm);
}

#define SEND(name) \
    TRACED(name, (const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm), \
           (data, count, type, peer, tag, comm)) { \
        struct call call = enter(); \
        int result = library_##name(data, count, type, peer, tag, comm); \
        message(&call, OP_SEND, count, type, peer, tag, comm); \
        return result; \
    }
SEND(Send)
SEND(Ssend)
SEND(Bsend)
SEND(Rsend)

#define ISEND(name) \
    TRACED(name, (const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request), \
           (data, count, type, peer, tag, comm, request)) { \
        struct call call = enter(); \
        int result = library_##name(data, count, type, peer, tag, comm, request); \
        begun(&call, OP_ISEND, count, type, peer, tag, comm, *request); \
        return result; \
    }
ISEND(Isend)
ISEND(Issend)
ISEND(Ibsend)
ISEND(Irsend)

TRACED(Irecv, (void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request),
       (data, count, type, peer, tag, comm, request)) {
    struct call call = enter();
    int result = library_Irecv(data, count, type, peer, tag, comm, request);
    begun(&call, OP_IRECV, count, type, peer, tag, comm, *request);
    return result;
}

TRACED(Recv, (void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Status *status),
       (data, count, type, peer, tag, comm, status)) {
    struct call call = enter();
    MPI_Status own;
    if (status == MPI_STATUS_IGNORE) status = &own;
    int result = library_Recv(data, count, type, peer, tag, comm, status);
    learn(result, status, &peer, &tag);
    message(&call, OP_RECV, count, type, peer, tag, comm);
    return result;
}

/* Both at once: a receive that begins, a send, and the wait for the former. */
static void exchanged(const struct call *call, long long sent, MPI_Datatype send_type, int to, int send_tag, long long room,
                      MPI_Datatype receive_type, int from, int receive_tag, MPI_Comm comm) {
    struct call now = *call;
    uint32_t number = begun(&now, OP_IRECV, room, receive_type, from, receive_tag, comm, MPI_REQUEST_NULL);
    if (number != 0) now.gap_ns = 0;
    message(&now, OP_SEND, sent, send_type, to, send_tag, comm);
    if (number == 0) return;
    struct call last = { now.entry_ns, gap_left };
    struct record record = { .peer = -1, .request = number, .operation = OP_WAIT };
    pthread_mutex_lock(&lock);
    append(&last, record);
    pthread_mutex_unlock(&lock);
    leave();
}

TRACED(Sendrecv, (const void *data, int count, MPI_Datatype type, int to, int tag, void *room, int room_count, MPI_Datatype room_type,
                  int from, int room_tag, MPI_Comm comm, MPI_Status *status),
       (data, count, type, to, tag, room, room_count, room_type, from, room_tag, comm, status)) {
    struct call call = enter();
    MPI_Status own;
    if (status == MPI_STATUS_IGNORE) status = &own;
    int result = library_Sendrecv(data, count, type, to, tag, room, room_count, room_type, from, room_tag, comm, status);
    learn(result, status, &from, &room_tag);
    exchanged(&call, count, type, to, tag, room_count, room_type, from, room_tag, comm);
    return result;
}

TRACED(Sendrecv_replace, (void *data, int count, MPI_Datatype type, int to, int tag, int from, int room_tag, MPI_Comm comm, MPI_Status *status),
       (data, count, type, to, tag, from, room_tag, comm, status)) {
    struct call call = enter();
    MPI_Status own;
    if (status == MPI_STATUS_IGNORE) status = &own;
    int result = library_Sendrecv_replace(data, count, type, to, tag, from, room_tag, comm, status);
    learn(result, status, &from, &room_tag);
    exchanged(&call, count, type, to, tag, count, type, from, room_tag, comm);
    return result;
}

#define PREPARE(name, constant, operation) \
    TRACED(name, (constant void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request), \
           (data, count, type, peer, tag, comm, request)) { \
        int result = library_##name(data, count, type, peer, tag, comm, request); \
        prepared(operation, count, type, peer, tag, comm, *request); \
        return result; \
    }
PREPARE(Send_init, const, OP_ISEND)
PREPARE(Ssend_init, const, OP_ISEND)
PREPARE(Bsend_init, const, OP_ISEND)
PREPARE(Rsend_init, const, OP_ISEND)
PREPARE(Recv_init, , OP_IRECV)

TRACED(Start, (MPI_Request *request), (request)) {
    struct call call = enter();
    int result = library_Start(request);
    started(&call, *request);
    return result;
}

TRACED(Startall, (int count, MPI_Request all[]), (count, all)) {
    struct call call = enter();
    int result = library_Startall(count, all);
    for (int index = 0; index < count; index++) {
        started(&call, all[index]);
        call.gap_ns = gap_left;
    }
    return result;
}

TRACED(Request_free, (MPI_Request *request), (request)) {
    pthread_mutex_lock(&lock);
    struct request *known = find(*request);
    if (known) forget(known);
    pthread_mutex_unlock(&lock);
    return library_Request_free(request);
}

TRACED(Wait, (MPI_Request *request, MPI_Status *status), (request, status)) {
    struct call call = enter();
    MPI_Request handle = *request;
    struct ended ended = look(handle);
    MPI_Status own;
    if (status == MPI_STATUS_IGNORE) status = &own;
    int result = library_Wait(request, status);
    waited(&call, handle, &ended, status);
    return result;
}

TRACED(Test, (MPI_Request *request, int *flag, MPI_Status *status), (request, flag, status)) {
    struct call call = enter();
    MPI_Request handle = *request;
    struct ended ended = look(handle);
    MPI_Status own;
    if (status == MPI_STATUS_IGNORE) status = &own;
    int result = library_Test(request, flag, status);
    if (*flag) waited(&call, handle, &ended, status);
    else leave_unrecorded(&call);
    return result;
}

/* What a wait for several needs to know of each: handles and statuses, the latter also where the program doesn't want them. */
struct several {
    MPI_Request *handles;
    struct ended *ended;
    MPI_Status *statuses, *own;
};

static struct several look_at(int count, const MPI_Request all[], MPI_Status *statuses) {
    size_t room = count > 0 ? (size_t)count : 1;
    struct several several = { malloc(room * sizeof(MPI_Request)), malloc(room * sizeof(struct ended)), statuses, NULL };
    if (statuses == MPI_STATUSES_IGNORE) several.own = several.statuses = malloc(room * sizeof(MPI_Status));
    if (!several.handles || !several.ended || !several.statuses) {
        fprintf(stderr, "exoskel tracer: no memory for %d requests\n", count);
        abort();
    }
    for (int index = 0; index < count; index++) {
        several.handles[index] = all[index];
        several.ended[index] = look(all[index]);
    }
    return several;
}

static void forget_several(struct several *several) {
    free(several->handles);
    free(several->ended);
    free(several->own);
}

/* All of them are over. */
static void waited_all(const struct call *call, int count, const struct several *several) {
    struct record record = { .peer = -1, .operation = OP_WAITALL };
    pthread_mutex_lock(&lock);
    for (int index = 0; index < count; index++) {
        const struct ended *ended = &several->ended[index];
        if (ended->number == 0) continue;
        end(several->handles[index], ended, &several->statuses[index]);
        if (record.tag++ == 0 || ended->number < record.request) record.request = ended->number;
    }
    if (record.tag > 0 && file >= 0) append(call, record);
    pthread_mutex_unlock(&lock);
    if (record.tag > 0) leave();
    else leave_unrecorded(call);
}

TRACED(Waitall, (int count, MPI_Request all[], MPI_Status statuses[]), (count, all, statuses)) {
    struct call call = enter();
    struct several several = look_at(count, all, statuses);
    int result = library_Waitall(count, all, several.statuses);
    waited_all(&call, count, &several);
    forget_several(&several);
    return result;
}

TRACED(Testall, (int count, MPI_Request all[], int *flag, MPI_Status statuses[]), (count, all, flag, statuses)) {
    struct call call = enter();
    struct several several = look_at(count, all, statuses);
    int result = library_Testall(count, all, flag, several.statuses);
    if (*flag) waited_all(&call, count, &several);
    else leave_unrecorded(&call);
    forget_several(&several);
    return result;
}

/* Some of them are over; which ones, with a status each, in that order. */
static void waited_some(struct call *call, int done, const int indexes[], const struct several *several) {
    if (done <= 0 || done == MPI_UNDEFINED) { leave_unrecorded(call); return; }
    for (int index = 0; index < done; index++) {
        waited(call, several->handles[indexes[index]], &several->ended[indexes[index]], &several->statuses[index]);
        call->gap_ns = gap_left;
    }
}

TRACED(Waitsome, (int count, MPI_Request all[], int *done, int indexes[], MPI_Status statuses[]),
       (count, all, done, indexes, statuses)) {
    struct call call = enter();
    struct several several = look_at(count, all, statuses);
    int result = library_Waitsome(count, all, done, indexes, several.statuses);
    waited_some(&call, *done, indexes, &several);
    forget_several(&several);
    return result;
}

TRACED(Testsome, (int count, MPI_Request all[], int *done, int indexes[], MPI_Status statuses[]),
       (count, all, done, indexes, statuses)) {
    struct call call = enter();
    struct several several = look_at(count, all, statuses);
    int result = library_Testsome(count, all, done, indexes, several.statuses);
    waited_some(&call, *done, indexes, &several);
    forget_several(&several);
    return result;
}

TRACED(Waitany, (int count, MPI_Request all[], int *index, MPI_Status *status), (count, all, index, status)) {
    struct call call = enter();
    MPI_Status own;
    struct several several = look_at(count, all, status == MPI_STATUS_IGNORE ? &own : status);
    int result = library_Waitany(count, all, index, several.statuses);
    waited_some(&call, *index == MPI_UNDEFINED ? 0 : 1, index, &several);
    forget_several(&several);
    return result;
}

TRACED(Testany, (int count, MPI_Request all[], int *index, int *flag, MPI_Status *status), (count, all, index, flag, status)) {
    struct call call = enter();
    MPI_Status own;
    struct several several = look_at(count, all, status == MPI_STATUS_IGNORE ? &own : status);
    int result = library_Testany(count, all, index, flag, several.statuses);
    waited_some(&call, *flag && *index != MPI_UNDEFINED ? 1 : 0, index, &several);
    forget_several(&several);
    return result;
}

TRACED(Barrier, (MPI_Comm comm), (comm)) {
    struct call call = enter();
    int result = library_Barrier(comm);
    collective(&call, OP_BARRIER, 0, -1, comm);
    return result;
}

TRACED(Bcast, (void *data, int count, MPI_Datatype type, int root, MPI_Comm comm), (data, count, type, root, comm)) {
    struct call call = enter();
    int result = library_Bcast(data, count, type, root, comm);
    collective(&call, OP_BCAST, bytes_of(count, type), world(comm, root), comm);
    return result;
}

TRACED(Reduce, (const void *data, void *room, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
       (data, room, count, type, op, root, comm)) {
    struct call call = enter();
    int result = library_Reduce(data, room, count, type, op, root, comm);
    collective(&call, OP_REDUCE, bytes_of(count, type), world(comm, root), comm);
    return result;
}

#define COMBINE(name, operation) \
    TRACED(name, (const void *data, void *room, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm), \
           (data, room, count, type, op, comm)) { \
        struct call call = enter(); \
        int result = library_##name(data, room, count, type, op, comm); \
        collective(&call, operation, bytes_of(count, type), -1, comm); \
        return result; \
    }
COMBINE(Allreduce, OP_ALLREDUCE)
COMBINE(Scan, OP_SCAN)
COMBINE(Exscan, OP_SCAN)
COMBINE(Reduce_scatter_block, OP_REDUCE_SCATTER)

TRACED(Reduce_scatter, (const void *data, void *room, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),
       (data, room, counts, type, op, comm)) {
    struct call call = enter();
    int result = library_Reduce_scatter(data, room, counts, type, op, comm);
    collective(&call, OP_REDUCE_SCATTER, mean_bytes(counts, type, comm), -1, comm);
    return result;
}

TRACED(Alltoall, (const void *data, int count, MPI_Datatype type, void *room, int room_count, MPI_Datatype room_type, MPI_Comm comm),
       (data, count, type, room, room_count, room_type, comm)) {
    struct call call = enter();
    int result = library_Alltoall(data, count, type, room, room_count, room_type, comm);
    collective(&call, OP_ALLTOALL, bytes_of(room_count, room_type), -1, comm);
    return result;
}

TRACED(Alltoallv, (const void *data, const int counts[], const int places[], MPI_Datatype type, void *room, const int room_counts[],
                   const int room_places[], MPI_Datatype room_type, MPI_Comm comm),
       (data, counts, places, type, room, room_counts, room_places, room_type, comm)) {
    struct call call = enter();
    int result = library_Alltoallv(data, counts, places, type, room, room_counts, room_places, room_type, comm);
    uint64_t bytes = data == MPI_IN_PLACE ? mean_bytes(room_counts, room_type, comm) : mean_bytes(counts, type, comm);
    collective(&call, OP_ALLTOALLV, bytes, -1, comm);
    return result;
}

TRACED(Alltoallw, (const void *data, const int counts[], const int places[], const MPI_Datatype types[], void *room,
                   const int room_counts[], const int room_places[], const MPI_Datatype room_types[], MPI_Comm comm),
       (data, counts, places, types, room, room_counts, room_places, room_types, comm)) {
    struct call call = enter();
    int result = library_Alltoallw(data, counts, places, types, room, room_counts, room_places, room_types, comm);
    int size = 1;
    uint64_t sum = 0;
    PMPI_Comm_size(comm, &size);
    for (int member = 0; member < size; member++)
        sum += data == MPI_IN_PLACE ? bytes_of(room_counts[member], room_types[member]) : bytes_of(counts[member], types[member]);
    collective(&call, OP_ALLTOALLV, sum / (uint64_t)size, -1, comm);
    return result;
}

TRACED(Gather, (const void *data, int count, MPI_Datatype type, void *room, int room_count, MPI_Datatype room_type, int root, MPI_Comm comm),
       (data, count, type, room, room_count, room_type, root, comm)) {
    struct call call = enter();
    int result = library_Gather(data, count, type, room, room_count, room_type, root, comm);
    uint64_t bytes = is_root(root, comm) ? bytes_of(room_count, room_type) : bytes_of(count, type);
    collective(&call, OP_GATHER, bytes, world(comm, root), comm);
    return result;
}

TRACED(Gatherv, (const void *data, int count, MPI_Datatype type, void *room, const int counts[], const int places[],
                 MPI_Datatype room_type, int root, MPI_Comm comm),
       (data, count, type, room, counts, places, room_type, root, comm)) {
    struct call call = enter();
    int result = library_Gatherv(data, count, type, room, counts, places, room_type, root, comm);
    uint64_t bytes = is_root(root, comm) ? mean_bytes(counts, room_type, comm) : bytes_of(count, type);
    collective(&call, OP_GATHER, bytes, world(comm, root), comm);
    return result;
}

TRACED(Scatter, (const void *data, int count, MPI_Datatype type, void *room, int room_count, MPI_Datatype room_type, int root, MPI_Comm comm),
       (data, count, type, room, room_count, room_type, root, comm)) {
    struct call call = enter();
    int result = library_Scatter(data, count, type, room, room_count, room_type, root, comm);
    uint64_t bytes = is_root(root, comm) ? bytes_of(count, type) : bytes_of(room_count, room_type);
    collective(&call, OP_SCATTER, bytes, world(comm, root), comm);
    return result;
}

TRACED(Scatterv, (const void *data, const int counts[], const int places[], MPI_Datatype type, void *room, int room_count,
                  MPI_Datatype room_type, int root, MPI_Comm comm),
       (data, counts, places, type, room, room_count, room_type, root, comm)) {
    struct call call = enter();
    int result = library_Scatterv(data, counts, places, type, room, room_count, room_type, root, comm);
    uint64_t bytes = is_root(root, comm) ? mean_bytes(counts, type, comm) : bytes_of(room_count, room_type);
    collective(&call, OP_SCATTER, bytes, world(comm, root), comm);
    return result;
}

TRACED(Allgather, (const void *data, int count, MPI_Datatype type, void *room, int room_count, MPI_Datatype room_type, MPI_Comm comm),
       (data, count, type, room, room_count, room_type, comm)) {
    struct call call = enter();
    int result = library_Allgather(data, count, type, room, room_count, room_type, comm);
    collective(&call, OP_ALLGATHER, bytes_of(room_count, room_type), -1, comm);
    return result;
}

TRACED(Allgatherv, (const void *data, int count, MPI_Datatype type, void *room, const int counts[], const int places[],
                    MPI_Datatype room_type, MPI_Comm comm),
       (data, count, type, room, counts, places, room_type, comm)) {
    struct call call = enter();
    int result = library_Allgatherv(data, count, type, room, counts, places, room_type, comm);
    collective(&call, OP_ALLGATHER, bytes_of(counts[own_rank(comm)], room_type), -1, comm);
    return result;
}
