/* Round trips between two ranks of an MPI library: mpi_lane NAME PIPE. Ranks poll while they wait, so between turns the second one reads a pipe. */
#include "turns.h"
#include <mpi.h>

static FILE *commands;
static char *memory;
static size_t memory_bytes;

static char *room(size_t bytes) {
    if (bytes > memory_bytes) {
        free(memory);
        memory = filled(bytes);
        memory_bytes = bytes;
    }
    return memory;
}

static void ask(const char *lane, size_t bytes, long count) {
    (void)lane;
    char *message = room(bytes);
    fprintf(commands, "%zu %ld\n", bytes, count);
    fflush(commands);
    for (long number = 0; number < count; number++) {
        MPI_Send(message, (int)bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(message, (int)bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static void answer(void) {
    char line[128];
    size_t bytes;
    long count;
    while (fgets(line, sizeof line, commands) && sscanf(line, "%zu %ld", &bytes, &count) == 2) {
        char *message = room(bytes);
        for (long number = 0; number < count; number++) {
            MPI_Recv(message, (int)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(message, (int)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    }
}

int main(int words, char **word) {
    int rank;
    MPI_Init(&words, &word);
    if (words != 3) fail("expected mpi_lane NAME PIPE");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    commands = fopen(word[2], rank ? "r" : "w");
    if (!commands) fail("the pipe can't be opened");
    if (rank) {
        answer();
    } else {
        take_turns(word[1], ask);
        fclose(commands);
    }
    MPI_Finalize();
    return 0;
}
